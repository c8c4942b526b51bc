"""Hops and congestion of any pattern: pairs, tables, lifetimes. Against breadth-first and exhaustive search."""

import math

import numpy as np
import pytest

import resolvent as rv
from resolvent.analysis import Routing, RoutingError, congestion, hop_matrix, hops, hops_by_distance, verify
from resolvent.analysis.frontier import recency_bound
from resolvent.analysis.lower_bounds import (
    cut_bound,
    interval_bound,
    last_readers,
    lower_bound,
    path_length_bound,
    worst_nearby,
)
from resolvent.analysis.steps import hops_apart
from tests.general_patterns import NAMES, Case, cases
from tests.oracles import breadth_first_hops, least_congestion


def test_hops_are_those_of_a_search() -> None:
    """300 positions: more than one block of inputs."""
    for n in [1, 2, 7, 60, 300]:
        for name in NAMES:
            case = cases(n)[name]
            found = [breadth_first_hops(case.later, j, case.first) for j in range(n)]
            everything = [distance for row in found for distance in row.values()]
            result = hops(case.pattern, n)
            assert result.max == max(everything, default=0)
            assert result.mean == pytest.approx(sum(everything) / max(len(everything), 1), rel=1e-12)
            assert result.unreachable_pairs == n * (n - 1) // 2 - len(everything)
            matrix = hop_matrix(case.pattern, n)
            for j in range(n):
                assert matrix[j + 1 :, j].tolist() == [found[j].get(i, -1) for i in range(j + 1, n)]


def test_exact_congestion_is_exhaustive() -> None:
    for n in [1, 2, 3, 4]:
        for name in NAMES:
            case = cases(2 * n)[name]
            expected = least_congestion(case.later, n, case.first)
            bounds = congestion(case.pattern, n, effort="exact")
            if expected is None:
                assert bounds.lower == bounds.upper == math.inf
                continue
            assert bounds.exact
            assert bounds.lower == expected
            assert bounds.routing is not None
            assert verify(case.pattern, bounds.routing) == expected
            assert 1 <= cut_bound(case.pattern, n) <= expected
            assert (
                cut_bound(case.pattern, n)
                <= interval_bound(case.pattern, n)
                <= lower_bound(case.pattern, n)[0]
                <= expected
            )


def test_bounds_hold_and_routings_are_real() -> None:
    for n in [5, 16, 100]:
        for effort in ["quick", "search"]:
            for name in NAMES:
                case = cases(2 * n)[name]
                bounds = congestion(case.pattern, n, effort=effort)
                apart = [breadth_first_hops(case.later, p, case.first).get(p + n) for p in range(n)]
                assert (None in apart) == math.isinf(bounds.lower) == (bounds.routing is None)
                if bounds.routing is not None:
                    assert (
                        bounds.lower
                        <= bounds.upper
                        == verify(case.pattern, bounds.routing)
                        == bounds.routing.congestion
                    )
                    assert bounds.lower >= path_length_bound(sum(d + 1 for d in apart), n) or not case_is_listed(case)
                nearby = worst_nearby(case.pattern, n, radius=2)
                longest = n + 2 if case.pattern.limit is None else n
                known = [lower_bound(case.pattern, length)[0] for length in range(n - 2, longest + 1)]
                assert bounds.lower <= nearby <= max(known)


def case_is_listed(case: Case) -> bool:
    """Whether its paths are measured: not so for contiguous columns, where the cut is the better bound."""
    return len(case.pattern.stages) > 1 or not case.pattern.contiguous_columns


def test_paths_of_several_lengths_at_once() -> None:
    for name in NAMES:
        case = cases(600)[name]
        apart = hops_apart(case.pattern, range(280, 301))
        for n in (280, 291, 300):
            for p in range(0, n, 37):
                assert apart[n][p] == breadth_first_hops(case.later, p, case.first).get(p + n, -1)


def test_cuts_by_counting() -> None:
    """At every cut: who may cross it, and through which positions."""
    for n in [1, 2, 20]:
        for name in NAMES:
            case = cases(2 * n)[name]
            for stage, rows in zip(case.pattern.stages[::-1], (case.later, case.first), strict=False):
                last = [
                    max([i for i, row in enumerate(rows[: j + n + 1]) if j in row], default=j) for j in range(2 * n)
                ]
                assert last_readers(stage, n).tolist() == last
            by_cut = by_interval = 1
            for s in range(1, 2 * n):
                live = {j for i in range(s, 2 * n) for j in case.later[i] if j < s and i <= j + n}
                starts = (
                    set() if case.first is None else {j for i in range(s, 2 * n) for j in case.first[i] if i <= j + n}
                )
                for a in range(max(s - n, 0), s):
                    crossing = {p for p in range(n) if a <= p < s <= p + n}
                    through = {j for j in live if j >= a}
                    if through:
                        own = crossing & starts - through  # which A alone takes across
                        needed = math.ceil((len(crossing) + sum(j >= n for j in through) - len(own)) / len(through))
                        by_interval = max(by_interval, needed)
                        by_cut = max(by_cut, needed) if a == max(s - n, 0) else by_cut
            assert cut_bound(case.pattern, n) == by_cut
            assert interval_bound(case.pattern, n) == by_interval


def test_intervals_of_contiguous_columns() -> None:
    for n in [30, 100, 512]:
        for spec in ["exponential+cache", "quadratic+cache", "binomial:10,lazy", "binomial:5", "fenwick"]:
            p = rv.pattern(spec)
            assert interval_bound(p, n) >= max(recency_bound(p.lives(2 * n), n), cut_bound(p, n))


def test_without_feedback_every_path_is_an_edge() -> None:
    halves = rv.explicit(lambda i: [i - 6, i - 1] if i > 5 else [], 12, recurrent=False)
    for p, n in ((rv.pattern("exponential+cache+attention"), 2), (rv.pair("fenwick", "attention"), 1), (halves, 6)):
        bounds = congestion(p, n)
        assert (bounds.lower, bounds.upper) == (1, 1)
        assert [path.tolist() for path in bounds.routing] == [[i, i + n] for i in range(n)]
        assert congestion(p, n - 1 if n == 6 else 3 * n).lower == math.inf


def test_pairs_step_by_a_once() -> None:
    """attention/first-order: any input in one hop, but only the first hop is A's."""
    p = rv.pattern("attention/first-order")
    assert (hop_matrix(p, 6)[5, :5] == 1).all()
    one_way = rv.pair(rv.explicit(lambda i: [0] if i == 2 else [], 8), "first-order")
    assert hop_matrix(one_way, 8)[7].tolist() == [6, 6, 5, 4, 3, 2, 1, 0]
    with pytest.raises(RoutingError, match=r"B of local:3/first-order has no edge from 1 to 3.*after its first step"):
        verify("local:3/first-order", Routing.from_paths([[0, 1, 3], [1, 3, 4], [2, 4, 5]]))


def test_pairs_of_strides_have_hops_by_distance() -> None:
    p = rv.pattern("exponential/order:8")
    by_distance = hops_by_distance(p, 500)
    assert by_distance.tolist() == hop_matrix(p, 500)[-1, ::-1].tolist()
    assert hops(p, 100_000).max == by_distance_by_hand(100_000)


def by_distance_by_hand(n: int) -> int:
    """One stride 2^k, then eights."""
    return max(min(1 + -(-(m - 2**k) // 8) for k in range(m.bit_length())) for m in range(1, n) if m < 64 or m > n // 2)


def test_large_tables_are_analyzed() -> None:
    """4,096 tokens, whatever the pattern; counted in listed reads, not in time."""
    rng = np.random.default_rng(0)
    table = rv.explicit(lambda i: {*rng.integers(0, max(i, 1), 8).tolist(), i - 1} - {-1, i}, 8192)
    profile = rv.analyze(table, 4096, effort="quick")
    assert 5 <= profile.max_hops <= hops(rv.pattern("first-order"), 4096).max
    assert profile.congestion is not None
    assert profile.congestion.lower <= profile.congestion.upper < 4096


def test_lengths_that_a_table_does_not_have() -> None:
    p = rv.explicit(lambda i: [i - 1] if i else [], 10)
    assert congestion(p, 5).lower == 5
    with pytest.raises(rv.PatternError, match=r"defined for 10 tokens.*takes 2n positions: expected n ≤ 5, got 6"):
        congestion(p, 6)
    with pytest.raises(rv.PatternError, match="expected n ≤ 5, got 6"):
        worst_nearby(p, 6)
    assert worst_nearby(p, 5) == 5  # of the lengths that it has
    with pytest.raises(rv.PatternError, match=r"reads are listed: expected at most 65,536 positions, got 200,000"):
        hops(rv.explicit(lambda i: [i - 1] if i else []), 200_000)
