"""No pattern has fewer hops, or less congestion, than its cache allows; binomial ones have the fewest hops."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rv
from resolvent.analysis import congestion, hops
from resolvent.analysis.frontier import fewest_hops, least_congestion, least_mean_hops
from tests.general_patterns import NAMES, cases, explicit, lifetimes
from tests.oracles import random_lives, random_rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 7, 60, 300])
def test_no_pattern_beats_its_cache(name: str, n: int) -> None:
    """With s positions held and h hops between any two, n ≤ C(s+h, s)."""
    check_bounds(cases(2 * n)[name].pattern, n)


@pytest.mark.parametrize("spec", [*rv.PAPER_STRUCTURES, "stride:k**3+1+cache", "offsets:1,4,9", "binomial:5,lazy"])
@pytest.mark.parametrize("n", [1, 2, 10, 100, 1000])
def test_none_of_the_papers_beats_it(spec: str, n: int) -> None:
    check_bounds(rv.pattern(spec), n)


def check_bounds(p: rv.Pattern, n: int) -> None:
    held, result = int(p.occupancy(n).max()), hops(p, n)
    if result.unreachable_pairs == 0:
        assert n <= math.comb(held + result.max, held)
        assert fewest_hops(held, n) <= result.max
        assert least_mean_hops(held, n) <= result.mean + 1e-9
    bounds = congestion(p, n, effort="quick")
    if not math.isinf(bounds.lower):
        assert int(p.occupancy(2 * n).max()) * bounds.upper >= n
        assert least_congestion(int(p.occupancy(2 * n)[:n].max()), n) <= bounds.lower
        assert p.slots(n) * bounds.lower >= n - 1


@given(st.integers(2, 40), st.floats(0, 3), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40, deadline=None)
def test_random_patterns_do_not_beat_it(n: int, reads: float, seed: int, by_lives: bool) -> None:
    rows = random_lives(2 * n, n, seed) if by_lives else random_rows(2 * n, reads, seed)
    check_bounds(lifetimes(rows) if by_lives else explicit(rows), n)
    check_bounds(rv.pair("local:4", explicit(rows)), n)


@pytest.mark.parametrize("lazy", ["", ",lazy"])
@pytest.mark.parametrize("s", range(1, 33))
def test_binomial_meets_it_at_every_length(s: int, lazy: str) -> None:
    """Up to 4,096 tokens. Hops over n tokens grow with n, so both ends of each run of equal bounds settle it."""
    p, h, longest = rv.pattern(f"binomial:{s}{lazy}"), 0, 4096
    ends = []
    while not ends or ends[-1] < longest:
        ends.append(min(math.comb(s + h, s), longest))
        h += 1
    for h, (begin, end) in enumerate(zip([1, *(each + 1 for each in ends)], ends, strict=False)):
        if s == 1 and 64 < h < longest - 64:
            continue  # a chain: every length is a run of its own
        for n in (begin, end):
            assert fewest_hops(s, n) == hops(p, n).max == h
            assert p.occupancy(n).max() == min(s, n - 1) == p.slots(n)


@pytest.mark.parametrize("s", [1, 2, 3, 5, 10, 16, 27, 32])
def test_binomial_meets_it_at_a_million(s: int) -> None:
    assert hops(rv.pattern(f"binomial:{s}"), 10**6).max == fewest_hops(s, 10**6)
    assert hops(rv.pattern(f"binomial:{s},lazy"), 10**6).max == fewest_hops(s, 10**6)
