"""Brute force, straight from the definitions. Shares nothing with the library but the strides it is given."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import hypothesis.strategies as st

# name -> f(k). f(0) > 1, non-convex and linear ones included; `None` ends a finite sequence.
STRIDES: dict[str, Callable[[int], int]] = {
    "2**k": lambda k: 2**k,
    "3**k": lambda k: 3**k,
    "k**2+1": lambda k: k**2 + 1,
    "k**3+1": lambda k: k**3 + 1,
    "k+1": lambda k: k + 1,
    "2*k+1": lambda k: 2 * k + 1,
    "3*k+2": lambda k: 3 * k + 2,
    "k**2+5": lambda k: k**2 + 5,
    "2**k+6": lambda k: 2**k + 6,
    "k*(k+1)//2+1": lambda k: k * (k + 1) // 2 + 1,
    "10*k+(k%3)*3+1": lambda k: 10 * k + (k % 3) * 3 + 1,
    "5*(k//2)+k%2+1": lambda k: 5 * (k // 2) + k % 2 + 1,
    "7*k+4*(k%2)+2": lambda k: 7 * k + 4 * (k % 2) + 2,
}

increasing = st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True).map(sorted)


Rows = list[set[int]]  # the positions that each token reads


def random_rows(n: int, reads: float, seed: int, *, chain: bool = True) -> Rows:
    """Each token reads each earlier one with the same probability, about `reads` in all; and the one before it."""
    rng = random.Random(seed)
    return [{j for j in range(i) if rng.random() < reads / i or (chain and j == i - 1)} for i in range(n)]


def random_lives(n: int, most: int, seed: int) -> Rows:
    """Each position is read by a random number of tokens right after it."""
    rng = random.Random(seed)
    last = [j + rng.randint(1, rng.randint(1, most)) for j in range(n)]
    return [{j for j in range(i) if i <= last[j]} for i in range(n)]


def fenwick_rows(n: int) -> Rows:
    """Counted from 1, token i reads the nodes of a Fenwick tree that sum up to all before it."""

    def nodes(count: int) -> set[int]:
        return {count - 1} | nodes(count - (count & -count)) if count else set()

    return [nodes(i) for i in range(n)]


def binomial_rows(size: int, n: int) -> Rows:
    """P(s, h): P(s, h-1), whose last token is then held, and P(s-1, h) in the other slots."""

    def build(s: int, h: int) -> Rows:
        if s == 0 or h == 0:
            return [set()]
        before, after = build(s, h - 1), build(s - 1, h)
        center = len(before) - 1
        return before + [{center} | {j + len(before) for j in row} for row in after]

    hops = 0
    while math.comb(size + hops, size) < n:
        hops += 1
    return build(size, hops)[:n]


def strides_below(f: Callable[[int], int], n: int) -> list[int]:
    found: list[int] = []
    while (value := f(len(found))) < n:
        found.append(value)
    return found


def cache_efficient_sets(strides: Iterable[int], n: int) -> Rows:
    """S_i for i < n (0-based), by the recursion: round i - f(k) up to what token i-1 held, or to i-1 itself."""
    strides = list(strides)
    sets: Rows = [set()]
    for i in range(1, n):
        available = sorted(sets[-1] | {i - 1})
        sets.append({next(j for j in available if j >= i - f) for f in strides if f <= i})
    return sets


def translation_invariant_sets(strides: Iterable[int], n: int) -> Rows:
    return [{i - f for f in strides if f <= i} for i in range(n)]


def breadth_first_hops(sets: Rows, start: int, first: Rows | None = None) -> dict[int, int]:
    """Hops from `start` to every later position it reaches.

    B reads `sets`. In the first hop A reads `first`, which is the same if not given; B does, too, after A's diagonal.
    """
    readers: dict[int, set[int]] = {}
    for i, row in enumerate(sets):
        for j in row:
            readers.setdefault(j, set()).add(i)
    direct = set() if first is None else {i for i, row in enumerate(first) if start in row}
    reached: dict[int, int] = {}
    frontier, hops = {start}, 0
    while frontier:
        hops += 1
        following = set[int]().union(*(readers.get(j, set()) for j in frontier)) | (direct if hops == 1 else set())
        frontier = following - reached.keys()
        reached.update(dict.fromkeys(frontier, hops))
    return reached


def least_congestion(sets: Rows, n: int, first: Rows | None = None) -> int | None:
    """Over all routings of n tokens n places on (2n positions): the least maximal load. None if there is none.

    B reads `sets`; the first step of a path may also be one of A's, `first`.
    """

    def paths(at: int, goal: int) -> list[list[int]]:
        """All paths from `at` to `goal`, found backwards."""
        if goal == at:
            return [[at]]
        found = [[*path, goal] for j in sets[goal] if j >= at for path in paths(at, j)]
        direct = first is not None and at in first[goal] - sets[goal]
        return [*found, [at, goal]] if direct else found

    choices = [paths(p, p + n) for p in range(n)]
    if not all(choices):
        return None
    best = n + 1

    def place(p: int, load: list[int]) -> None:
        nonlocal best
        if max(load) >= best:
            return
        if p == n:
            best = max(load)
            return
        for path in choices[p]:
            for node in path:
                load[node] += 1
            place(p + 1, load)
            for node in path:
                load[node] -= 1

    place(0, [0] * (2 * n))
    return best
