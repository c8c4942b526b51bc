"""Compiled loops of the analysis, cached on disk. Imported lazily by the functions that call them."""

from __future__ import annotations

import heapq

import numpy as np

from resolvent.disk_cache import cached_njit


@cached_njit()
def coin_change(first, strides, fewest):
    """The least number of strides that sum to m, one of `first` perhaps, for each m < n; -1 if there is no such sum.

    Written to `fewest`, which is -1 for each m > 0.
    """
    n = len(fewest)
    fewest[0] = 0
    for stride in first:
        fewest[stride] = 1
    top = -1  # index of the largest stride ≤ m
    for m in range(1, n):
        while top + 1 < len(strides) and strides[top + 1] <= m:
            top += 1
        if fewest[m] == 1 or (top >= 0 and strides[top] == m):
            fewest[m] = 1
            continue
        best = np.int32(2**31 - 1)
        for k in range(top, -1, -1):
            before = fewest[m - strides[k]]
            if 0 <= before < best - 1:
                best = before + 1
                if best == 2:
                    break
        if best < 2**31 - 1:
            fewest[m] = best


@cached_njit()
def hop_block(starts, sources, first_starts, first_sources, begin, end, stop):
    """Hops from the inputs begin … end - 1 to the outputs begin … stop - 1, shape (stop - begin, end - begin).

    Row i is the minimum of the rows that B reads at i, plus one: a pass over all steps, whatever the number of hops.
    """
    far = np.uint16(65535)
    fewest = np.full((stop - begin, end - begin), far, dtype=np.uint16)
    for i in range(begin, stop):
        row = fewest[i - begin]
        for e in range(starts[i], starts[i + 1]):
            m = sources[e] - begin
            if m >= 0:
                before = fewest[m]
                for k in range(min(m + 1, end - begin)):
                    row[k] = before[k] if before[k] < row[k] else row[k]
        for k in range(end - begin):
            row[k] = row[k] + np.uint16(1) if row[k] < far else far
        for e in range(first_starts[i], first_starts[i + 1]):
            j = first_sources[e]
            if begin <= j < end:
                row[j - begin] = 1
        if i < end:
            row[i - begin] = 0
    return fewest


@cached_njit()
def interval_hops(reach, relay, total, most, end):
    """Write for each j the sum of hops to all reachable positions, the largest of them, and the last one reachable.

    `reach` is the last reader of j, `relay` the one of j and its readers that is read the longest. Positions within t
    hops of j form an interval up to R_t(j), and R_{t+1}(j) = R_t(relay(j)) for t ≥ 1. Summing (end - R_t) over t
    therefore needs only the sum at the relay.
    """
    for j in range(len(reach) - 1, -1, -1):
        r = relay[j]
        if reach[r] <= reach[j]:
            end[j] = reach[j]
            total[j] = reach[j] - j
            most[j] = 1 if reach[j] > j else 0
        else:
            end[j] = end[r]
            total[j] = (end[j] - j) + (end[j] - reach[j]) + total[r] - (end[j] - r)
            most[j] = most[r] + 1


@cached_njit()
def interval_bound(last, last_of_a, n, held):
    """The largest quotient of `lower_bounds.interval_bound` over all cuts and all intervals that end there.

    Positions that are still read are `held` in order; the interval is extended back from the cut, from one to the next.
    """
    size, best = 0, 1
    for cut in range(1, 2 * n):
        held[size] = cut - 1
        size += 1
        kept = 0
        for index in range(size):
            j = held[index]
            if last[j] >= cut or (j < n and last_of_a[j] >= cut):
                held[kept] = j
                kept += 1
        size = kept
        live, spare = 0, 0  # positions that B reads; paths that end there, less those that A alone takes across
        for index in range(size - 1, -1, -1):
            j = held[index]
            if last[j] >= cut:
                live += 1
                spare += 1 if j >= n else 0
            else:
                spare -= 1
            begin = held[index - 1] + 1 if index else 0
            crossing = (cut if cut < n else n) - (begin if begin > cut - n else cut - n)
            if crossing > 0 and live and crossing + spare > best * live:  # a quotient only where it is larger
                best = -(-(crossing + spare) // live)
    return best


@cached_njit()
def next_longer(lives):
    """The next position whose last reader is at least as late as this one's (n if there is none)."""
    n = len(lives)
    following = np.full(n, n, dtype=np.int64)
    for i in range(n - 2, -1, -1):
        k = i + 1
        while k < n and k + lives[k] < i + lives[i]:
            k = following[k]
        following[i] = k
    return following


@cached_njit()
def sweep(lives, following, n, capacity, eager, order, most_visits):
    """Copy n tokens by n positions, one position at a time, with at most `capacity` tokens through any node.

    A token held at node j is lost unless it moves on by j + life(j). Each new node takes the tokens whose deadline is
    earliest, if it holds them longer; ties are broken by `order`, a permutation of the tokens. An eager sweep
    always does so; a patient one leaves a token that can still wait for a longer-lived node.
    Returns the visits as (token, node) in order of time; empty if a token was lost or there were too many visits.
    """
    nodes = 2 * n
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    deadline = np.zeros(n, dtype=np.int64)  # the last position that can still fetch token p
    waiting = [np.int64(0) for _ in range(0)]  # heap of deadline · n + rank; stale entries are skipped
    tokens = [np.int64(0) for _ in range(0)]
    visited = [np.int64(0) for _ in range(0)]
    moved = np.empty(capacity, dtype=np.int64)
    lost = False
    for i in range(nodes):
        until = i + lives[i]
        worthwhile = until if eager else min(until, following[i])
        if i >= n:
            if deadline[i - n] < i:
                lost = True
                break
            tokens.append(i - n)
            visited.append(i)
        count = 0
        while count < capacity - 1 and len(waiting):
            key = waiting[0]
            due, p = key // n, order[key % n]
            if deadline[p] != due:
                heapq.heappop(waiting)
                continue
            if due < i:
                lost = True
                break
            if due >= worthwhile:
                break
            heapq.heappop(waiting)
            deadline[p] = until
            moved[count] = p
            count += 1
            tokens.append(p)
            visited.append(i)
        if lost or len(tokens) > most_visits:
            lost = True
            break
        for c in range(count):
            p = moved[c]
            if p + n > until:
                heapq.heappush(waiting, until * n + rank[p])
        if i < n:
            deadline[i] = until
            tokens.append(i)
            visited.append(i)
            if i + n > until:
                heapq.heappush(waiting, until * n + rank[i])
    if lost:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.array(tokens), np.array(visited)


@cached_njit()
def reroute(later, first_readers, n, on_path, target, rounds, seed):
    """Rip up and reroute: while a node carries more than `target` paths, reroute one path after another at least cost.

    Steps into a node are given by rows, and those that can only be a first step by columns. `on_path[p, v]` says
    whether path p visits node p + v; it is changed in place. A node costs more the more paths use it and the longer it
    has been overloaded. Returns whether the target was met.
    """
    np.random.seed(seed)
    starts, sources = later
    reader_starts, readers = first_readers
    nodes = 2 * n
    load = np.zeros(nodes, dtype=np.int64)
    for p in range(n):
        for v in range(n + 1):
            if on_path[p, v]:
                load[p + v] += 1
    penalty = np.zeros(nodes, dtype=np.float64)
    cost = np.empty(nodes, dtype=np.float64)
    came_from = np.empty(nodes, dtype=np.int64)
    reads_start = np.full(nodes, -1, dtype=np.int64)  # the last path whose start this node reads in a first step
    price = 1.0
    for _ in range(rounds):
        if load.max() <= target:
            return True
        for p in np.random.permutation(n):
            overloaded = False
            for v in range(n + 1):
                if on_path[p, v] and load[p + v] > target:
                    overloaded = True
            if not overloaded and np.random.random() < 0.7:
                continue
            for v in range(n + 1):
                if on_path[p, v]:
                    load[p + v] -= 1
                    on_path[p, v] = False
            cost[p] = 0.0
            for e in range(reader_starts[p], reader_starts[p + 1]):
                reads_start[readers[e]] = p
            for v in range(p + 1, p + n + 1):
                best, via = (0.0, p) if reads_start[v] == p else (np.inf, -1)
                for e in range(starts[v], starts[v + 1]):
                    s = sources[e]
                    if s >= p and cost[s] < best:
                        best, via = cost[s], s
                own_cost = 0.0
                if v < p + n:
                    excess = load[v] + 1 - target
                    own_cost = 1.0 + penalty[v] + 0.01 * load[v] + (price * excess if excess > 0 else 0.0)
                cost[v] = best + own_cost
                came_from[v] = via
            v = p + n
            while True:
                on_path[p, v - p] = True
                load[v] += 1
                if v == p:
                    break
                v = came_from[v]
        for v in range(nodes):
            if load[v] > target:
                penalty[v] += 0.5 * (load[v] - target)
        price = min(price * 1.3, 1e6)
    return load.max() <= target


@cached_njit()
def shortest_routes(starts, sources, fewest, begin, n, load, path_starts, nodes):
    """Fill in a shortest path for each input of a block of hops, through the least loaded nodes so far."""
    for p in range(begin, begin + fewest.shape[1]):
        v = p + n
        end = path_starts[p + 1] - 1
        while True:
            nodes[end] = v
            load[v] += 1
            if v == p:
                break
            left = fewest[v - begin, p - begin] - 1
            via = np.int64(p)
            if left > 0:
                least = np.int64(-1)
                for e in range(starts[v], starts[v + 1]):
                    m = sources[e]
                    if m > p and fewest[m - begin, p - begin] == left and (least < 0 or load[m] < least):
                        least, via = load[m], np.int64(m)
            v = via
            end -= 1
