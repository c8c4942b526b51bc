"""Brute force, straight from the definitions. Shares nothing with the library but the strides it is given."""

from __future__ import annotations

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


def strides_below(f: Callable[[int], int], n: int) -> list[int]:
    found: list[int] = []
    while (value := f(len(found))) < n:
        found.append(value)
    return found


def cache_efficient_sets(strides: Iterable[int], n: int) -> list[set[int]]:
    """S_i for i < n (0-based), by the recursion: round i - f(k) up to what token i-1 held, or to i-1 itself."""
    strides = list(strides)
    sets: list[set[int]] = [set()]
    for i in range(1, n):
        available = sorted(sets[-1] | {i - 1})
        sets.append({next(j for j in available if j >= i - f) for f in strides if f <= i})
    return sets


def translation_invariant_sets(strides: Iterable[int], n: int) -> list[set[int]]:
    return [{i - f for f in strides if f <= i} for i in range(n)]


def breadth_first_hops(sets: list[set[int]], start: int) -> dict[int, int]:
    """Hops from `start` to every later position it reaches."""
    readers: dict[int, list[int]] = {}
    for i, sources in enumerate(sets):
        for j in sources:
            readers.setdefault(j, []).append(i)
    reached, frontier, hops = {}, [start], 0
    while frontier:
        hops += 1
        frontier = sorted({i for j in frontier for i in readers.get(j, []) if i not in reached and i != start})
        reached.update(dict.fromkeys(frontier, hops))
    return reached


def least_congestion(sets: list[set[int]], n: int) -> int | None:
    """Over all routings of n tokens n places on (2n positions): the least maximal load. None if there is none."""

    def paths(at: int, goal: int) -> list[list[int]]:
        """All paths from `at` to `goal`, found backwards."""
        if goal == at:
            return [[at]]
        return [[*path, goal] for j in sets[goal] if j >= at for path in paths(at, j)]

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
