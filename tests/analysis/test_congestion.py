"""Congestion: exact values against exhaustive search, valid bounds, and a verifier that catches every error."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

import resolvent as rv
from resolvent.analysis import Routing, RoutingError, congestion, hops_by_distance, routers, verify
from resolvent.analysis.lower_bounds import cut_bound, lower_bound, path_length_bound, worst_nearby
from resolvent.errors import SettingError
from tests.oracles import (
    STRIDES,
    cache_efficient_sets,
    increasing,
    least_congestion,
    strides_below,
    translation_invariant_sets,
)


def check_exact(p: rv.Pattern, sets: list[set[int]], n: int) -> None:
    """The exact method finds what trying every routing finds, and its own routing shows it."""
    expected = least_congestion(sets, n)
    bounds = congestion(p, n, effort="exact")
    if expected is None:
        assert bounds.lower == bounds.upper == math.inf
        assert bounds.routing is None
        return
    assert bounds.exact
    assert bounds.lower == expected
    assert bounds.routing is not None
    assert verify(p, bounds.routing) == expected


def test_exact_is_exhaustive() -> None:
    for n in [1, 2, 3, 4, 5]:
        for text in STRIDES:
            strides = strides_below(STRIDES[text], 2 * n)
            check_exact(rv.pattern(f"stride:{text}"), translation_invariant_sets(strides, 2 * n), n)
            check_exact(rv.pattern(f"stride:{text}+cache"), cache_efficient_sets(strides, 2 * n), n)


@given(increasing)
@settings(max_examples=25, deadline=None)
def test_exact_is_exhaustive_on_random_lists(values: list[int]) -> None:
    check_exact(rv.strided(values), translation_invariant_sets(values, 8), 4)
    check_exact(rv.strided(values).cache_efficient(), cache_efficient_sets(values, 8), 4)


def test_integer_program_closes_a_gap_that_search_leaves() -> None:
    """k⁴+1 at n = 27 needs five, though path length alone only proves four."""
    p = rv.pattern("stride:k**4+1")
    searched, settled = congestion(p, 27), congestion(p, 27, effort="exact")
    assert (searched.lower, searched.upper, searched.exact) == (4, 5, False)
    assert settled.exact
    assert settled.lower_by == "integer program"


def test_bounds_hold_and_routings_are_real() -> None:
    for spec in ["attention", "local:8", "order:8", "exponential", "quadratic+cache", "stride:3*k+2+cache"]:
        for n in [1, 2, 3, 16, 31, 64, 100, 255]:
            for effort in ["quick", "search"]:
                p = rv.pattern(spec)
                bounds = congestion(p, n, effort=effort)
                assert bounds.lower <= bounds.upper
                if bounds.routing is not None:
                    assert verify(p, bounds.routing) == bounds.upper
                    assert bounds.routing.congestion == bounds.upper
                quick = congestion(p, n, effort="quick")
                assert (bounds.lower, bounds.upper <= quick.upper) == (quick.lower, True)


def test_known_values() -> None:
    for n in [1, 2, 5, 16, 100, 1000]:

        def value(spec: str, n: int = n) -> float:
            bounds = congestion(rv.pattern(spec), n)
            assert bounds.exact
            return bounds.lower

        assert value("attention") == value("dense") == 1
        assert value("first-order") == n
        for k in (2, 3, 8):
            assert value(f"order:{k}") == math.ceil(n / k)
            assert value(f"local:{k}") == (1 if n < k else math.inf)


def test_exponential_at_powers_of_two_is_one() -> None:
    for n in [2**t for t in range(11)]:
        bounds = congestion(rv.exponential(), n)
        assert (bounds.lower, bounds.upper) == (1, 1)


def test_exponential_breaks_the_printed_bound() -> None:
    for n in [1, 3, 7]:
        assert congestion(rv.exponential(), n, effort="exact").lower > math.log2(n)


def test_up_to_three_hops_congestion_is_the_hops() -> None:
    for spec in ["exponential", "quadratic", "stride:k**3+1"]:
        p = rv.pattern(spec)
        by_distance = hops_by_distance(p, 301)
        for n in range(1, 301):
            bounds = congestion(p, n, effort="quick")
            assert bounds.upper <= by_distance[n]  # shifting one path
            assert bounds.lower >= path_length_bound(n * (int(by_distance[n]) + 1), n)
            if by_distance[n] <= 3:
                assert bounds.lower == bounds.upper == by_distance[n]


def test_deadline_sweep_meets_the_cut_for_exponential() -> None:
    for n in [16, 64, 128, 256, 512]:
        p = rv.pattern("exponential+cache")
        bounds = congestion(p, n, effort="quick" if n == 16 else "search")
        assert bounds.lower == cut_bound(p, n)
        if n > 16:
            assert bounds.exact
            assert bounds.upper_by == "deadline sweep"
        assert bounds.lower == pytest.approx(n / math.log2(n), rel=0.06)


def test_cache_times_congestion() -> None:
    """Every path crosses the middle through a live position: no cache-efficient pattern escapes."""
    for spec in ("exponential+cache", "quadratic+cache", "stride:k**3+1+cache", "order:8", "first-order"):
        p = rv.pattern(spec)
        for n in (16, 100, 1024):
            routing = routers.sweep(p, n, 1, search=False)
            assert p.reads(n) * verify(p, routing) >= n  # a real routing cannot beat it
            assert p.reads(n) * congestion(p, n, effort="quick").lower >= n


def test_quadratic_cache_congestion_grows_like_the_root() -> None:
    p = rv.pattern("quadratic+cache")
    for n in (1024, 4096, 16_384, 65_536):
        bounds = congestion(p, n, effort="quick")
        assert bounds.lower / math.sqrt(n) == pytest.approx(1.4, abs=0.08)


def test_reroute_repairs_a_bad_routing() -> None:
    """From the worst start, every token through every node it can use, down to the proven bound."""
    p, n = rv.pattern("order:4"), 32
    worst = Routing.from_paths([list(range(i, i + n + 1)) for i in range(n)])
    assert verify(p, worst) == n
    assert verify(p, routers.reroute(p, n, 8, worst)) == 8


def test_reroute_is_deterministic() -> None:
    p, n = rv.pattern("quadratic+cache"), 100
    start = routers.sweep(p, n, 1, search=False)
    first, second = routers.reroute(p, n, 15, start), routers.reroute(p, n, 15, start)
    assert np.array_equal(first.nodes, second.nodes)


def test_verifier_catches_every_kind_of_error() -> None:
    p, n = rv.pattern("exponential+cache"), 8
    good = congestion(p, n).routing
    paths = [path.tolist() for path in good]
    assert verify(p, good) == good.congestion

    def broken(change: object) -> Routing:
        copy = [list(path) for path in paths]
        change(copy)
        return Routing.from_paths(copy)

    with pytest.raises(RoutingError, match=r"path 3 runs from 3 to 10: expected from 3 to 11"):
        verify(p, broken(lambda c: c[3].__setitem__(-1, 10)))
    with pytest.raises(RoutingError, match="has no edge from 0 to 8"):
        verify(p, broken(lambda c: c.__setitem__(0, [0, 8])))
    with pytest.raises(RoutingError, match="has no edge"):
        verify(p, broken(lambda c: c[2].insert(1, 2)))  # standing still
    with pytest.raises(RoutingError, match="two or more nodes"):
        verify(p, broken(lambda c: c.__setitem__(1, [1])))
    with pytest.raises(RoutingError, match="no feedback"):
        verify(rv.pattern("attention"), good)


def test_routing_draws_itself() -> None:
    routing = congestion(rv.pattern("first-order"), 3).routing
    assert routing.draw().splitlines() == ["●●●●··", "·●●●●·", "··●●●●", "123321  load per node, at most 3"]
    with pytest.raises(rv.PatternError, match="n ≤ 64"):
        congestion(rv.pattern("dense"), 65).routing.draw()


OPEN_CASES = {"quadratic+cache": 0, "stride:k**3+1+cache": 4, "exponential+cache": 90}


@pytest.mark.slow
@pytest.mark.parametrize("spec", OPEN_CASES)
def test_how_often_search_settles_it(spec: str) -> None:
    """All n ≤ 512: never more than one unit between the bounds, and few open cases (docs/log.md)."""
    p = rv.pattern(spec)
    gaps = [(bounds := congestion(p, n)).upper - bounds.lower for n in range(1, 513)]
    assert max(gaps) <= 1
    assert sum(gaps) <= OPEN_CASES[spec]


def test_the_best_cut_is_that_of_all_cuts() -> None:
    """Its closed forms and its compiled pass, against the counts that its proof names, cut by cut."""
    for spec in [
        "order:3",
        "offsets:1,2,6",
        "offsets:2,5",
        "local:6/order:3",
        "local:2/order:7",
        "local:4/exponential",
        "binomial:3",
        "binomial:4,lazy",
        "quadratic+cache",
        "local:9/binomial:2,lazy",
    ]:
        for n in [1, 2, 9, 30, 65]:
            a, b = (rv.pattern(spec).stages[index] for index in (0, -1))

            def live(stage: rv.Pattern, cut: int, n: int = n) -> set[int]:
                return {int(j) for i in range(cut, 2 * n) for j in stage.sources(i) if max(i - n, 0) <= j < cut}

            loads = [1]
            for cut in range(1, 2 * n):
                of_b, of_a = live(b, cut), live(a, cut)
                crossing = min(cut, 2 * n - cut) + sum(j >= n for j in of_b) - sum(j < n for j in of_a - of_b)
                loads += [-(-crossing // len(of_b))] if of_b else []
            assert cut_bound(rv.pattern(spec), n) == max(loads)


def test_path_length_bound() -> None:
    """There are n paths of d + 1 nodes on 2n nodes, and the first and last nodes lie on few paths."""
    for n in (1, 2, 3, 10, 20):
        for visits in range(2 * n, n * (n + 1) + 1):
            room = [sum(min(c, v + 1, 2 * n - v) for v in range(2 * n)) for c in range(n + 1)]
            assert path_length_bound(visits, n) == min(c for c in range(n + 1) if room[c] >= visits)
    for d in range(2, 40):
        assert path_length_bound(1000 * (d + 1), 1000) == (d + 1) // 2 + 1
        assert path_length_bound(d * (d + 1), d) >= (d + 1) // 2 + 1  # however few tokens there are


def test_exact_says_when_it_is_too_large() -> None:
    bounds = congestion(rv.pattern("stride:k**3+1"), 112, effort="exact")
    assert not bounds.exact
    assert bounds.note == "integer program skipped: n = 112 is too large for it"


def test_bad_effort() -> None:
    with pytest.raises(SettingError, match=r"quick or search or exact, got 'serch'. Did you mean 'search'"):
        congestion(rv.exponential(), 4, effort="serch")


def test_a_power_of_two_flatters_the_exponential_pattern() -> None:
    """One length can be lucky: the worst nearby is no less than the bound at any length within eight."""
    assert worst_nearby("exponential", 1024) == 6
    assert congestion("exponential", 1023).lower == congestion("exponential", 1023).upper == 6
    for spec in ("exponential", "quadratic", "exponential+cache", "order:3", "stride:3*k+1", "dense", "attention"):
        for n in (5, 33, 64):
            nearby = [lower_bound(rv.pattern(spec), length)[0] for length in range(max(n - 8, 1), n + 9)]
            assert nearby[min(8, n - 1)] <= worst_nearby(spec, n) <= max(nearby)
            if rv.pattern(spec).is_shifted(2 * n):
                assert worst_nearby(spec, n) == max(nearby)
    assert worst_nearby("local:4", 64) == math.inf
