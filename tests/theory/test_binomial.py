"""The binomial pattern: its arithmetic is its definition, eager and lazy, and its hops are the fewest."""

import random
from math import comb

import numpy as np
import pytest

import resolvent as rv
from resolvent.analysis.hops import interval_hops
from resolvent.patterns import binomial
from resolvent.patterns.strides import Integers

SIZES = range(1, 9)


def rows_by_definition(s: int, h: int) -> list[list[int]]:
    """P(s, h): P(s, h-1), whose last token is read by all of P(s-1, h), which follows."""
    if s == 0 or h == 0:
        return [[]]
    first, second = rows_by_definition(s, h - 1), rows_by_definition(s - 1, h)
    return first + [[len(first) - 1, *(len(first) + j for j in row)] for row in second]


def most_hops_at_every_length(rows: list[list[int]]) -> list[int]:
    """The largest number of hops over all pairs of the first n tokens, for n = 1, 2, …; by dynamic programming."""
    n = len(rows)
    hops = np.full((n, n), 2**14, dtype=np.int16)
    for i, row in enumerate(rows):
        if row:
            hops[i, :i] = hops[row, :i].min(axis=0) + 1
        hops[i, i] = 0
    most: list[int] = np.maximum.accumulate(np.where(np.tri(n, dtype=np.bool_), hops, 0).max(axis=1)).tolist()
    return most


def test_arithmetic_is_the_definition() -> None:
    for s, h in [(1, 60), (2, 30), (3, 20), (4, 12), (5, 9), (6, 7), (8, 5), (12, 4), (27, 2)]:
        rows = rows_by_definition(s, h)
        assert len(rows) == comb(s + h, s)
        assert rows == [binomial.live(s, t) for t in range(len(rows))]


@pytest.mark.parametrize("s", SIZES)
def test_slots_are_static_and_never_lose_a_live_position(s: int) -> None:
    """A simulated cache of s slots: what lies in it is the lazy pattern, and holds all that the eager one reads."""
    n = 2000
    lives, lazy, slots = binomial.lives(s, n), binomial.lives_lazy(s, n), binomial.slots(s, n)
    past = np.arange(n)
    cache: dict[int, int] = {}
    for t in range(n):
        held = sorted(cache.values())
        assert held == binomial.live_lazy(s, t) == np.flatnonzero(t - past[:t] <= lazy[:t]).tolist()
        assert len(held) == min(s, t)
        assert binomial.live(s, t) == np.flatnonzero(t - past[:t] <= lives[:t]).tolist()
        assert set(binomial.live(s, t)) <= set(held)
        cache[binomial.slot(s, t)] = t
    assert slots.tolist() == [binomial.slot(s, j) for j in range(n)]
    assert lives.tolist() == [min(binomial.life(s, j), n) for j in range(n)]
    assert lazy.tolist() == [min(binomial.life_lazy(s, j), n) for j in range(n)]
    first_used = np.unique(slots, return_index=True)[1]
    assert first_used.tolist() == list(range(s))  # slots are numbered in the order of first use


@pytest.mark.parametrize("s", SIZES)
def test_hops_are_the_fewest_at_every_length(s: int) -> None:
    n = 300 if s == 1 else 2000
    fewest = [binomial.fewest_hops(s, length) for length in range(1, n + 1)]
    assert most_hops_at_every_length([binomial.live(s, t) for t in range(n)]) == fewest
    assert most_hops_at_every_length([binomial.live_lazy(s, t) for t in range(n)]) == fewest


def most_hops(lives: Integers) -> int:
    _, most, end = interval_hops(lives)
    assert end.min() == len(lives) - 1
    return int(most.max())


@pytest.mark.parametrize("s", range(1, 33))
def test_hops_are_the_fewest_up_to_4096_tokens(s: int) -> None:
    """Hops only grow with the length, so it is enough to look before and after each length where the bound grows."""
    eager, lazy = binomial.lives(s, 4097), binomial.lives_lazy(s, 4097)
    growing = {comb(s + h, s) for h in range(1, 4096)}
    for n in sorted(length for length in growing if 2 <= length <= 4096)[:: 64 if s == 1 else 1]:
        h = binomial.fewest_hops(s, n)
        assert comb(s + h, s) == n
        for lives in (eager, lazy):
            assert most_hops(lives[:n]) == h
            assert most_hops(lives[: n + 1]) == h + 1
        for p in (rv.pattern(f"binomial:{s}"), rv.pattern(f"binomial:{s},lazy")):
            assert rv.hops(p, n).max == h
            assert p.occupancy(n).max() == min(s, n - 1) == p.slots(n)
    assert most_hops(eager[:4096]) == most_hops(lazy[:4096]) == binomial.fewest_hops(s, 4096)


def test_hops_are_the_fewest_over_a_million_tokens() -> None:
    for s in [2, 3, 5, 10, 16, 27, 32]:
        n, h = 10**6, binomial.fewest_hops(s, 10**6)
        assert comb(s + h - 1, s) < n <= comb(s + h, s)
        assert most_hops(binomial.lives(s, n)) == most_hops(binomial.lives_lazy(s, n)) == h


def test_arithmetic_holds_anywhere() -> None:
    """Single steps far out: what a token reads was held before it or is the token before, and lives that long."""
    for n in [10**6, 10**30]:
        for s in [1, 2, 3, 7, 16, 40]:
            for t in [random.Random(f"{s} {n}").randrange(n) for _ in range(20)] + [
                n,
                comb(s + 5, s),
                comb(s + 5, s) + 1,
            ]:
                for live, life in ((binomial.live, binomial.life), (binomial.live_lazy, binomial.life_lazy)):
                    held, following = live(s, t), live(s, t + 1)
                    assert following == [j for j in (*held, t) if t + 1 - j <= life(s, j)]
                    assert all(life(s, j) == t - j for j in set(held) - set(following))
                    assert len({binomial.slot(s, j) for j in held}) == len(held) <= s
                assert len(binomial.live_lazy(s, t)) == min(s, t)
                assert binomial.live(s, t) == sorted(binomial.live(s, t), key=lambda j: binomial.slot(s, j))  # a stack
