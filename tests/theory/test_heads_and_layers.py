"""Hops and congestion of mixed heads and stacks, and of long copies, against exhaustive search."""

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

import resolvent as rv
from resolvent.analysis.congestion import congestion
from resolvent.analysis.frontier import fewest_hops
from resolvent.analysis.routers import persistent_load
from resolvent.analysis.stack import stack_congestion, stack_hops
from tests.designer.test_design import stack_by_search
from tests.general_patterns import GivenLives, lifetimes
from tests.oracles import Rows, least_congestion, random_lives

STACKS = [
    [["order:3", "binomial:3,lazy"]],
    [["local:4", "exponential+cache"]],
    [["local:3"], ["local:5"], ["local:2"]],
    [["order:2"], ["binomial:3,lazy"]],
    [["binomial:3,lazy"], ["order:2"]],
    [["first-order", "fenwick"], ["local:3", "longformer:2,1"]],
    [["local:3/exponential+cache", "order:2"]],
    [["local:3/first-order"], ["first-order/binomial:2,lazy"]],
    [["exponential", "local:3"], ["quadratic"]],  # as matrices
]


def test_hops_through_heads_and_layers() -> None:
    for n in [1, 2, 3, 17, 30]:
        for layers in STACKS:
            expected = stack_by_search([[rv.pattern(name) for name in heads] for heads in layers], n)
            pairs = [hops for j, reached in enumerate(expected) for i, hops in reached.items() if i > j]
            result = stack_hops(layers, n)
            assert result.max == max(pairs, default=0)
            assert result.mean == pytest.approx(sum(pairs) / len(pairs) if pairs else 0.0)
            assert result.unreachable_pairs == n * (n - 1) // 2 - len(pairs)


def test_long_stacks_need_contiguous_columns() -> None:
    with pytest.raises(ValueError, match=r"exponential: not every position .* expected n ≤ 512, got 1,000"):
        stack_hops([["exponential", "order:2"]], 1000)
    with pytest.raises(ValueError, match="at least one layer"):
        stack_hops([], 8)
    with pytest.raises(ValueError, match="as many heads in every layer"):
        stack_congestion([["order:2"], ["order:2", "order:3"]], 8)


def rows_of(name: str, n: int) -> Rows:
    return [set(rv.pattern(name).sources(i).tolist()) for i in range(n)]


def least_of_parts(heads: Sequence[Rows], n: int) -> int:
    """Over all choices of a head and a path for each part: the least maximal load of a position of a head."""

    def paths(rows: Rows, at: int, goal: int) -> list[list[int]]:
        if goal == at:
            return [[at]]
        return [[*path, goal] for j in rows[goal] if j >= at for path in paths(rows, at, j)]

    choices = [
        [tuple((g, node) for node in path) for g, rows in enumerate(heads) for path in paths(rows, p, p + n)]
        for p in range(n)
    ]
    parts = [p for p in range(n) for _ in heads]
    best = len(parts) + 1
    load: dict[tuple[int, int], int] = {}

    def put(index: int, highest: int, before: int) -> None:
        nonlocal best
        if highest >= best:
            return
        if index == len(parts):
            best = highest
            return
        same = index and parts[index] == parts[index - 1]
        for number in range(before if same else 0, len(choices[parts[index]])):  # parts of a token are alike
            path = choices[parts[index]][number]
            for node in path:
                load[node] = load.get(node, 0) + 1
            put(index + 1, max(highest, *(load[node] for node in path)), number)
            for node in path:
                load[node] -= 1

    put(0, 0, 0)
    return best


def test_congestion_of_mixed_heads_by_exhaustive_search() -> None:
    for n in [1, 2, 3]:
        for names in [
            ("first-order", "order:2"),
            ("first-order", "binomial:2,lazy"),
            ("first-order", "first-order"),
            ("order:2", "binomial:3,lazy"),
            ("exponential+cache", "first-order"),
            ("fenwick", "order:2"),
        ]:
            exact = least_of_parts([rows_of(name, 2 * n) for name in names], n)
            bounds = stack_congestion([list(names)], n)
            assert bounds.lower <= exact <= bounds.upper
            held = [rv.pattern(name).slots(n) for name in names]
            assert exact >= -(-2 * (n - 1) // max(sum(held), 1))


def test_equal_heads_are_no_worse_than_their_pattern() -> None:
    for name in ("order:3", "binomial:4,lazy", "exponential+cache"):
        alone, together = congestion(name, 64), stack_congestion([[name] * 3], 64)
        assert together.lower <= alone.upper
        assert together.upper <= alone.lower + 1


def test_tokens_that_never_arrive_bound_congestion() -> None:
    """Lemma 5, for lifetimes that drop any number of positions at a time."""
    for seed in range(40):
        rng = random.Random(seed)
        n = rng.randrange(1, 6)
        rows = random_lives(2 * n, rng.choice([2, 3, 6]), seed)
        exact = least_congestion(rows, n)
        load = persistent_load(lifetimes(rows).stages[0], n)
        assert exact is not None
        assert load is not None
        assert exact <= load + 1
        lives = np.array(
            [next((i - 1 - j for i in range(j + 1, 2 * n) if j not in rows[i]), 2 * n) for j in range(2 * n)]
        )
        assert load == max(
            -(-(min(b, n - 1) - a + 1) // sum(j + lives[j] > b for j in range(a, b + 1)))
            for a in range(n)
            for b in range(a, 2 * n - 1)
        )


def test_closed_form_is_the_search_over_intervals() -> None:
    for n in [3, 4, 9, 40]:
        for name in ["binomial:5,lazy", "order:4", "first-order"]:
            stage = rv.pattern(name).stages[0]
            given = lifetimes_of(stage.lives(2 * n).tolist())
            for share, whole, surplus in ((1, 1, 0), (3, 2, 0), (5, 7, 2)):
                closed, searched = (persistent_load(each, n, share, whole, surplus) for each in (stage, given))
                assert closed is not None
                assert searched is not None
                assert searched <= closed
                assert surplus or n < 5 or closed == searched


def lifetimes_of(lives: list[int]) -> rv.Pattern:
    from resolvent.patterns.lifetimes import Lifetimes

    return Lifetimes(GivenLives(tuple(lives)))


@pytest.mark.parametrize("name", ["exponential+cache", "quadratic+cache", "fenwick", "longformer:3,2"])
def test_long_copies_are_bounded_from_both_sides(name: str) -> None:
    for n in (50, 200):
        load = persistent_load(rv.pattern(name).stages[0], n)
        bounds = congestion(name, n)
        assert load is not None
        assert bounds.lower <= load + 1


def test_congestion_of_a_long_copy_is_known_within_one() -> None:
    bounds = congestion("exponential+cache", 40_000, "quick")
    assert bounds.upper <= bounds.lower + 1
    assert bounds.upper_by == "flow through what is held"
    assert bounds.routing is None


def test_fixed_distances_reach_few() -> None:
    """No more than C(r+h, h) distances are sums of at most h of r strides, so that many hops are needed."""
    for strides in [(1, 2, 4), (1, 5), (1, 3, 9, 27)]:
        for h in range(1, 5):
            sums = {
                sum(each) for count in range(h + 1) for each in itertools.combinations_with_replacement(strides, count)
            }
            assert len(sums) <= math.comb(len(strides) + h, h)
        p = rv.pattern("offsets:" + ",".join(map(str, strides)))
        for n in (5, 40, 100):
            assert rv.hops(p, n).max >= fewest_hops(len(strides), n)


def test_even_schedules_exist() -> None:
    """Earliest deadline first gives every head its share of any prefix, to less than one part (Tijdeman 1980)."""
    for shares in [(1, 1), (15, 1), (757, *[1] * 11), (3, 5, 7), (2, 2, 9, 1)]:
        total, given = sum(shares), [0] * len(shares)
        for q in range(2 * total):
            # head g may have its next part once that is less than one too many, and must before it is one too few
            ready = [g for g, s in enumerate(shares) if given[g] * total < s * (q + 1)]
            chosen = min(ready, key=lambda g: -(-(given[g] + 1) * total // shares[g]))
            given[chosen] += 1
            assert all(abs(given[g] * total - s * (q + 1)) < total for g, s in enumerate(shares))


def test_one_far_head_has_the_hops_of_the_whole_cache() -> None:
    """Theorem 6 at a glance: 8 heads of 16 slots over 2,000 tokens."""
    heads, slots, n = 8, 16, 2000
    far = heads * slots - (heads - 1)
    mixed = [f"binomial:{far},lazy", *["first-order"] * (heads - 1)]
    assert stack_hops([mixed], n).max == fewest_hops(far, n) == fewest_hops(heads * slots, n) == 2
    assert fewest_hops(slots, n) == 4
    bounds = stack_congestion([mixed], n)
    assert bounds.lower == n // slots
    assert bounds.upper <= -(-heads * n // (heads * slots)) + 2 + heads + 1
