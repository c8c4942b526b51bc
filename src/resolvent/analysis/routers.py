"""Ways to find a routing of low congestion. Each returns a routing; `routing.verify` is the judge of all of them."""

from __future__ import annotations

import numpy as np

from resolvent.analysis.hops import hops_by_distance
from resolvent.analysis.routing import Routing
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers

# A routing is written out only up to this many node visits in all (40 MB); beyond, bounds come without one.
MOST_VISITS = 5_000_000
# Which of several equally urgent tokens moves first decides the last unit of congestion: try some orders by chance.
RETRIES = 30


def shortest_path(pattern: Pattern, n: int) -> Integers:
    """Translation-invariant: one shortest path from 0 to n. Any stride that leaves one hop less lies on one."""
    fewest = hops_by_distance(pattern, n + 1)
    strides = pattern.offsets(n + 1)
    path, m = [0], n
    while m:
        usable = strides[: np.searchsorted(strides, m, side="right")]
        stride = int(usable[np.flatnonzero(fewest[m - usable] == fewest[m] - 1)[-1]])
        m -= stride
        path.append(path[-1] + stride)
    return np.array(path, dtype=np.int64)


def shift_load(path: Integers, n: int) -> int:
    """The congestion of the n copies of a path from 0 to n, each shifted by one: its most nodes in n places in a row.

    Node v lies on copy v - u for each node u of the path with v - n < u ≤ v. At most the number of hops, since the
    two ends of the path are n apart.
    """
    return int(np.max(np.arange(len(path)) - np.searchsorted(path, path - n, side="right") + 1))


def shift(path: Integers, n: int) -> Routing:
    """One path from 0 to n and its copies."""
    nodes = np.add.outer(np.arange(n, dtype=np.int64), path)
    return Routing(n, np.arange(n + 1, dtype=np.int64) * len(path), nodes.ravel())


def sweep(pattern: Pattern, n: int, lower: int, search: bool = True) -> Routing | None:
    """Contiguous columns: carry all tokens forward together, the one that must move soonest first.

    With a search, finds the least capacity at which an eager sweep loses no token (beyond n = 4096, to 6 %),
    starting at the proven lower bound, which it meets in nearly all cases. Without, one patient sweep: few hops, much
    load. None when the routing would be too long to write out.
    """
    from resolvent.analysis import kernels

    lives = pattern.lives(2 * n)
    if n * (n // max(int(lives.max()), 1) + 2) > MOST_VISITS:
        return None
    following = kernels.next_longer(lives)
    chance = np.random.default_rng(0)
    orders = [np.arange(n)] if n > 4096 else [np.arange(n), np.arange(n)[::-1].copy()]
    orders += [chance.permutation(n) for _ in range(RETRIES if n <= 4096 else 0)]

    def attempt(capacity: int, eager: bool) -> Routing | None:
        for order in orders:
            tokens, nodes = kernels.sweep(lives, following, n, capacity, eager, order, MOST_VISITS)
            if len(tokens):
                return Routing.from_visits(n, tokens, nodes)
        return None

    best = attempt(n, eager=False)
    failed, step, capacity = lower - 1, 1 + n // 1024, lower
    good_enough = 1 if n <= 4096 else 1 + lower // 16
    while best is not None and search and best.congestion - failed > good_enough:
        routing = attempt(capacity, eager=True)
        if routing is None:
            failed = capacity
        elif routing.congestion < best.congestion:
            best = routing
        # Gallop up from the lower bound while nothing works, but never past the middle; then bisect.
        middle = (failed + best.congestion) // 2
        capacity, step = min(capacity + step, middle) if routing is None else middle, 2 * step
    return best


def reroute(pattern: Pattern, n: int, lower: int, start: Routing, rounds: int = 60, seed: int = 0) -> Routing:
    """Any pattern: improve a routing by rip-up-and-reroute, aiming at the lower bound and then ever less."""
    from resolvent.analysis import kernels

    rows = [pattern.sources(i) for i in range(2 * n)]
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    sources = np.concatenate(rows)
    best, target, failed = start, lower, lower - 1
    while failed < best.congestion - 1:
        on_path = np.zeros((n, n + 1), dtype=np.bool_)
        for p, path in enumerate(best):
            on_path[p, path - p] = True
        if kernels.reroute(starts, sources, n, on_path, target, rounds, seed):
            best = Routing.from_paths([np.flatnonzero(row) + p for p, row in enumerate(on_path)])
        else:
            failed = target
        target = (failed + best.congestion) // 2
    return best
