"""Hops against breadth-first search, and against the closed forms of docs/theory.md."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

import resolvent as rv
from resolvent.analysis import hop_matrix, hops, hops_by_distance
from tests.oracles import (
    STRIDES,
    breadth_first_hops,
    cache_efficient_sets,
    increasing,
    strides_below,
    translation_invariant_sets,
)


def check(p: rv.Pattern, sets: list[set[int]]) -> None:
    """Max, mean and unreachable pairs, and every single distance, as a search finds them."""
    n = len(sets)
    found = [breadth_first_hops(sets, j) for j in range(n)]
    everything = [distance for row in found for distance in row.values()]
    result = hops(p, n)
    assert result.max == max(everything, default=0)
    assert result.mean == pytest.approx(sum(everything) / max(len(everything), 1), rel=1e-12)
    assert result.unreachable_pairs == n * (n - 1) // 2 - len(everything)
    matrix = hop_matrix(p, n)
    for j in range(n):
        assert matrix[j + 1 :, j].tolist() == [found[j].get(i, -1) for i in range(j + 1, n)]


def test_families() -> None:
    for n in [1, 2, 7, 90]:
        for text in STRIDES:
            strides = strides_below(STRIDES[text], n)
            check(rv.pattern(f"stride:{text}"), translation_invariant_sets(strides, n))
            check(rv.pattern(f"stride:{text}+cache"), cache_efficient_sets(strides, n))


@given(increasing)
@settings(max_examples=50, deadline=None)
def test_random_lists(values: list[int]) -> None:
    check(rv.strided(values), translation_invariant_sets(values, 60))
    check(rv.strided(values).cache_efficient(), cache_efficient_sets(values, 60))


@pytest.mark.parametrize("spec", ["attention", "local:4", "exponential+attention", "exponential+attention+cache"])
def test_without_feedback_there_is_one_hop_or_none(spec: str) -> None:
    p, n = rv.pattern(spec), 50
    reads = sum(p.reads(i) for i in range(n))
    result = hops(p, n)
    assert (result.max, result.mean, result.unreachable_pairs) == (1, 1.0, n * (n - 1) // 2 - reads)
    assert (hop_matrix(p, n) == 1).sum() == reads


def test_exponential_counts_ones() -> None:
    by_distance = hops_by_distance(rv.exponential(), 5000)
    assert by_distance.tolist() == [m.bit_count() for m in range(5000)]
    for t in range(1, 12):  # the printed bound log2(i - j) fails exactly here
        assert by_distance[2**t - 1] == t > math.log2(2**t - 1)
    assert all(by_distance[m] <= math.floor(math.log2(m + 1)) for m in range(1, 5000))


def test_quadratic_is_lagrange() -> None:
    """1 + the four-square theorem: at most four hops, and exactly which distances need how many."""

    def is_square(m: int) -> bool:
        return m >= 0 and math.isqrt(m) ** 2 == m

    def two_squares(m: int) -> bool:
        return m >= 0 and any(is_square(m - a * a) for a in range(math.isqrt(m) + 1))

    def three_squares(m: int) -> bool:
        while m > 0 and m % 4 == 0:
            m //= 4
        return m >= 0 and m % 8 != 7

    def expected(m: int) -> int:
        if is_square(m - 1):
            return 1
        if two_squares(m - 2):
            return 2
        return 3 if m >= 3 and three_squares(m - 3) else 4

    by_distance = hops_by_distance(rv.quadratic(), 20_000)
    assert by_distance[1:].tolist() == [expected(m) for m in range(1, 20_000)]
    assert by_distance.max() == 4


def test_cache_efficient_exponential_follows_low_bits() -> None:
    n = 200
    matrix = hop_matrix(rv.pattern("exponential+cache"), n)
    for j in range(1, n + 1):  # 1-based
        for i in range(j + 1, n + 1):
            p, steps = j, 0
            while p + 2 * (p & -p) < i:
                p, steps = p + (p & -p), steps + 1
            assert matrix[i - 1, j - 1] == 1 + steps


def test_cache_efficient_quadratic_loses_the_four() -> None:
    """It grows, but with the logarithm of the logarithm."""
    most = [hops(rv.pattern("quadratic+cache"), 2**t).max for t in range(4, 23)]
    assert most == [3, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]


def test_banded() -> None:
    for k in [1, 3, 8]:
        for n in [1, 2, 9, 100]:
            assert hops(rv.pattern(f"order:{k}"), n).max == math.ceil((n - 1) / k)
            assert hops(rv.pattern("first-order"), n).max == n - 1


def test_matrix_refuses_what_cannot_be_drawn() -> None:
    with pytest.raises(rv.PatternError, match=r"n ≤ 4,096.*hops\(pattern, n\)"):
        hop_matrix(rv.exponential(), 10_000)
    with pytest.raises(rv.PatternError, match="depend on more than the distance"):
        hops_by_distance(rv.pattern("exponential+cache"), 100)


def test_long_sequences_are_exact_and_quick() -> None:
    n = 65_536
    ones = np.array([m.bit_count() for m in range(n)])
    weights = n - np.arange(n)
    assert hops(rv.exponential(), n).mean == pytest.approx((ones * weights)[1:].sum() / weights[1:].sum(), rel=1e-12)
    assert hops(rv.pattern("first-order"), n).mean == pytest.approx((n + 1) / 3, rel=1e-12)
