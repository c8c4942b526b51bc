"""The loops of the analysis, compiled on first use and kept on disk. Imported only by the functions that call them."""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit


@njit(cache=True)
def coin_change(strides, n):
    """fewest[m] = least number of strides that sum to m, for m < n; -1 where none do."""
    fewest = np.full(n, -1, dtype=np.int32)
    fewest[0] = 0
    top = -1  # index of the largest stride ≤ m
    for m in range(1, n):
        while top + 1 < len(strides) and strides[top + 1] <= m:
            top += 1
        if top >= 0 and strides[top] == m:
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
    return fewest


@njit(cache=True)
def best_relay(lives):
    """relay[j]: among j and its readers, the one that is itself read the longest."""
    n = len(lives)
    relay = np.empty(n, dtype=np.int64)
    records = np.empty(n, dtype=np.int64)  # positions ≥ j, each read longer than all before it; nearest on top
    size = 0
    for j in range(n - 1, -1, -1):
        reach = min(j + lives[j], n - 1)
        while size and min(records[size - 1] + lives[records[size - 1]], n - 1) <= reach:
            size -= 1
        records[size] = j
        size += 1
        low, high = 0, size - 1  # the farthest record that still reads j
        while low < high:
            middle = (low + high) // 2
            if records[middle] <= reach:
                high = middle
            else:
                low = middle + 1
        relay[j] = records[low]
    return relay


@njit(cache=True)
def interval_hops(lives, relay):
    """For each j: the sum of hops to all later positions it reaches, the most hops, and the last position it reaches.

    Positions within t hops of j form an interval up to R_t(j), and R_{t+1}(j) = R_t(relay(j)) for t ≥ 1. Summing
    (end - R_t) over t therefore needs only the sum at the relay.
    """
    n = len(lives)
    total = np.zeros(n, dtype=np.int64)
    most = np.zeros(n, dtype=np.int64)
    end = np.empty(n, dtype=np.int64)
    for j in range(n - 1, -1, -1):
        reach = min(j + lives[j], n - 1)
        r = relay[j]
        if r == j or min(r + lives[r], n - 1) <= reach:
            end[j] = reach
            total[j] = reach - j
            most[j] = 1 if reach > j else 0
        else:
            end[j] = end[r]
            total[j] = (end[j] - j) + (end[j] - reach) + total[r] - (end[j] - r)
            most[j] = most[r] + 1
    return total, most, end


@njit(cache=True)
def next_longer(lives):
    """The next position that is read at least as long as this one is (the end of the sequence if none)."""
    n = len(lives)
    following = np.full(n, n, dtype=np.int64)
    for i in range(n - 2, -1, -1):
        k = i + 1
        while k < n and k + lives[k] < i + lives[i]:
            k = following[k]
        following[i] = k
    return following


@njit(cache=True)
def sweep(lives, following, n, capacity, eager, order, most_visits):
    """Carry n tokens n places on, one position at a time, at most `capacity` through any node.

    A token held at node j is lost unless it moves on by j + life(j). Each new node takes the tokens whose hold ends
    soonest, provided it holds them longer; among equals the first in `order`, a permutation of the tokens. An
    eager sweep always does so; a patient one leaves a token that can still wait for a longer-lived node.
    Returns the visits as (token, node) in order of time; none at all if a token was lost or the visits grew too many.
    """
    nodes = 2 * n
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    hold = np.zeros(n, dtype=np.int64)  # the last position that can still fetch token p
    waiting = [np.int64(0) for _ in range(0)]  # hold · n + place in order, least first; stale entries are skipped
    tokens = [np.int64(0) for _ in range(0)]
    visited = [np.int64(0) for _ in range(0)]
    moved = np.empty(capacity, dtype=np.int64)
    lost = False
    for i in range(nodes):
        until = i + lives[i]
        worthwhile = until if eager else min(until, following[i])
        if i >= n:
            if hold[i - n] < i:
                lost = True
                break
            tokens.append(i - n)
            visited.append(i)
        count = 0
        while count < capacity - 1 and len(waiting):
            key = waiting[0]
            held, p = key // n, order[key % n]
            if hold[p] != held:
                heapq.heappop(waiting)
                continue
            if held < i:
                lost = True
                break
            if held >= worthwhile:
                break
            heapq.heappop(waiting)
            hold[p] = until
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
                heapq.heappush(waiting, until * n + place[p])
        if i < n:
            hold[i] = until
            tokens.append(i)
            visited.append(i)
            if i + n > until:
                heapq.heappush(waiting, until * n + place[i])
    if lost:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.array(tokens), np.array(visited)


@njit(cache=True)
def reroute(starts, sources, n, on_path, target, rounds, seed):
    """Rip up and reroute: while a node carries more than `target` paths, send one path after another the cheapest way.

    `on_path[p, v]` says whether path p visits node p + v; it is changed in place. A node costs more the more paths
    already use it, and more the longer it has been overfull. Returns whether the target was met.
    """
    np.random.seed(seed)
    nodes = 2 * n
    load = np.zeros(nodes, dtype=np.int64)
    for p in range(n):
        for v in range(n + 1):
            if on_path[p, v]:
                load[p + v] += 1
    grudge = np.zeros(nodes, dtype=np.float64)
    cost = np.empty(nodes, dtype=np.float64)
    came_from = np.empty(nodes, dtype=np.int64)
    price = 1.0
    for _ in range(rounds):
        if load.max() <= target:
            return True
        for p in np.random.permutation(n):
            overfull = False
            for v in range(n + 1):
                if on_path[p, v] and load[p + v] > target:
                    overfull = True
            if not overfull and np.random.random() < 0.7:
                continue
            for v in range(n + 1):
                if on_path[p, v]:
                    load[p + v] -= 1
                    on_path[p, v] = False
            cost[p] = 0.0
            for v in range(p + 1, p + n + 1):
                best, via = np.inf, -1
                for e in range(starts[v], starts[v + 1]):
                    s = sources[e]
                    if s >= p and cost[s] < best:
                        best, via = cost[s], s
                here = 0.0
                if v < p + n:
                    excess = load[v] + 1 - target
                    here = 1.0 + grudge[v] + 0.01 * load[v] + (price * excess if excess > 0 else 0.0)
                cost[v] = best + here
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
                grudge[v] += 0.5 * (load[v] - target)
        price = min(price * 1.3, 1e6)
    return load.max() <= target


@njit(cache=True)
def list_by_last_reader(last_reader, known, count, most):
    """(count, most) int32: what the rows from `known` on read, nearest first, -1 beyond.

    Row j is read by all later rows up to `last_reader[j]`; those before `known` only by rows from there on.
    """
    table = np.full((count, most), -1, dtype=np.int32)
    alive = np.empty(most + known + 1, dtype=np.int32)
    alive[:known] = np.arange(known)
    held = known
    for r in range(count):
        kept = 0
        for c in range(held):
            if last_reader[alive[c]] >= known + r:
                alive[kept] = alive[c]
                kept += 1
        held = kept
        for c in range(held):
            table[r, c] = alive[held - 1 - c]
        if last_reader[known + r] > known + r:
            alive[held] = known + r
            held += 1
    return table
