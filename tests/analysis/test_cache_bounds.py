"""No pattern has fewer hops, or less congestion, than its cache allows; binomial ones have the fewest hops."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rv
from resolvent.analysis import congestion, hops
from resolvent.analysis.frontier import fewest_hops, least_congestion, least_mean_hops
from tests.general_patterns import NAMES, cases, explicit, lifetimes
from tests.oracles import random_lives, random_rows


def test_no_pattern_beats_its_cache() -> None:
    """With s positions held and h hops between any two, n ≤ C(s+h, s)."""
    for n in [1, 2, 7, 60, 300]:
        for name in NAMES:
            check_bounds(cases(2 * n)[name].pattern, n)


def test_none_of_the_papers_beats_it() -> None:
    for n in [1, 2, 10, 100, 1000]:
        for spec in [*rv.PAPER_STRUCTURES, "stride:k**3+1+cache", "offsets:1,4,9", "binomial:5,lazy"]:
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
