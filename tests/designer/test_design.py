"""The designer: what it finds is what the analysis says, nothing better is pruned, and no bound is broken."""

import itertools
import json
import math
import re

import pytest

import resolvent as rv
from resolvent.analysis.frontier import fewest_hops
from resolvent.designer import Budget, Shape
from resolvent.designer.budget import least_of, least_within
from resolvent.designer.search import Search, no_worse
from resolvent.designer.space import lines
from resolvent.designer.structure import Structure
from tests.oracles import breadth_first_hops

CASES = [
    (48, Shape(1, 2, 4), {"slots": 6}),
    (20, Shape(1, 2, 4), {"kib": 3, "mean_hops": 4}),
    (33, Shape(1, 1, 4), {"reads": 5, "slots": 32}),
    (20, Shape(1, 2, 4), {"congestion": 6, "madds": 500}),
    (24, Shape(2, 2, 4), {"slots": 3.5, "max_hops": 5}),
]


def search(n: int, shape: Shape, prune: bool, **budget: float) -> Search:
    made = Search(n, shape, Budget(**budget), prune)
    made.run(lines(n, shape, tuple(sorted({fewest_hops(h, n) for h in range(1, 9)}))))
    return made


@pytest.mark.parametrize(("n", "shape", "budget"), CASES, ids=str)
def test_nothing_better_is_pruned(n: int, shape: Shape, budget: dict[str, float]) -> None:
    """With and without bounds the same points are on the frontier; and every structure that fits is matched by one."""
    pruned, full = search(n, shape, True, **budget), search(n, shape, False, **budget)
    points = [{(s.lower(each), s.upper(each)) for each in s.frontier()} for s in (pruned, full)]
    assert points[0] == points[1]
    assert len(pruned.measured) <= len(full.measured)
    for each in full.measured:
        assert any(no_worse(pruned.lower(other), full.upper(each)) for other in pruned.frontier())


def small_family(slots: int) -> list[Structure]:
    """All windows, binomial patterns and lists of distances up to six with a 1, in two heads; and all mixes of two."""
    sizes = range(1, 2 * slots)
    alone = [
        f"{name}:{s}{end}" for s in sizes for name, end in (("order", ""), ("binomial", ""), ("binomial", ",lazy"))
    ]
    for size in range(6):
        for distances in itertools.combinations(range(2, 7), size):
            alone += [f"offsets:{','.join(map(str, (1, *distances)))}{end}" for end in ("", "+cache")]
    patterns = [rv.pattern(name) for name in alone]
    contiguous = [p for p in patterns if p.contiguous_columns]  # type: ignore[attr-defined]
    mixes = itertools.combinations(contiguous, 2)
    return [Structure((((2, p),),)) for p in patterns] + [Structure((((1, p), (1, q)),)) for p, q in mixes]


@pytest.mark.parametrize("n", [12, 40, 64])
def test_nothing_in_a_small_family_is_better(n: int) -> None:
    """Exhaustive: of all that fits, nothing ranks above the first, and nothing is better than one of the frontier."""
    shape, slots = Shape(1, 2, 64, 4), 5
    found = rv.design(n, slots=slots, heads=2, order=["max_hops", "congestion"])
    everything = Search(n, shape, Budget(slots=slots), prune=False)
    for structure in small_family(slots):
        everything.consider("any", structure)
    assert len(everything.measured) > 500
    first, fewest = found[0].figures, min(each.figures.mean_hops for each in found.frontier)
    least = min(each.figures.congestion.upper for each in found.frontier)
    for each in everything.measured:
        assert (each.figures.max_hops, each.figures.congestion.upper) >= (first.max_hops, first.congestion.lower)
        assert each.figures.mean_hops >= fewest - 1e-12
        assert each.figures.congestion.lower >= least - 1
    for each in found.frontier:
        low = everything.lower(each)
        beaten = [other for other in everything.measured if strictly_better(everything.upper(other), low)]
        assert not beaten, (each, beaten[0])


def strictly_better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return no_worse(one, other) and one != other


@pytest.mark.parametrize("budget", [{"slots": 8}, {"slots": 20, "reads": 6}, {"reads": 12}], ids=str)
def test_figures_are_those_of_the_analysis(budget: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    n = 256
    monkeypatch.setattr("resolvent.analysis.profile.growth", lambda _: None)  # not compared, and most of the time
    for each in rv.design(n, heads=1, **budget).frontier:
        profile = rv.analyze(each.structure.patterns[0], n, heads=1, effort="quick")
        figures, bounds = each.figures, profile.congestion
        assert bounds is not None
        assert (figures.slots, figures.reads) == (profile.cache_slots, profile.reads_per_token.max)
        assert (figures.max_hops, figures.mean_hops) == (profile.max_hops, pytest.approx(profile.mean_hops, abs=1e-12))
        assert profile.unreachable_pairs == 0
        assert figures.congestion.upper >= bounds.lower
        assert figures.kib == pytest.approx(profile.cost.cache_bytes / 1024)
        assert figures.madds == pytest.approx(profile.cost.forward_madds_per_token)
        assert each.least.max_hops <= figures.max_hops
        assert each.least.mean_hops <= figures.mean_hops + 1e-12
        assert each.least.congestion == profile.least.congestion <= bounds.upper


def test_both_frontiers_are_met() -> None:
    """At this cache no pattern has fewer hops, and none less congestion by more than one."""
    found = rv.design(4096, slots=24, heads=1)
    first = found[0]
    assert str(first.structure.patterns[0]) == "binomial:24,lazy"
    assert first.figures.max_hops == fewest_hops(24, 4096) == first.least.max_hops
    assert first.figures.congestion.lower == -(-4096 // 24)
    assert first.figures.congestion.upper == first.figures.congestion.lower + 1
    assert min(each.figures.congestion.upper for each in found.frontier) == -(-4096 // 24)


def test_congestion_is_as_exact_as_that_of_the_analysis() -> None:
    """Of what is shown: both say where a routing meets the proven bound, with the same lower bound beside it."""
    found = rv.design(1024, slots=10, heads=1)
    for each in found:
        p = each.structure.patterns[0]
        if p.is_shifted(1024) and not p.stages[-1].contiguous_columns:
            continue  # one length can flatter it: the designer takes the worst nearby
        bounds, least = rv.congestion(p, 1024), rv.analyze(p, 1024, effort="quick").least.congestion
        assert (each.figures.congestion.lower, each.figures.congestion.upper) == (bounds.lower, bounds.upper)
        assert each.cells[-1] == f"{bounds.lower:,} ({least:,})"


def test_a_mix_over_heads_has_fewer_hops_in_the_same_cache() -> None:
    one, mixed = rv.design(2048, slots=12, heads=1), rv.design(2048, slots=12, heads=6)
    assert one[0].figures.max_hops == one.least.max_hops == 5
    assert mixed[0].figures.max_hops == mixed.least.max_hops == 2
    assert not mixed[0].structure.is_uniform
    assert mixed[0].figures.slots <= 12
    layer = mixed[0].pattern
    assert isinstance(layer, tuple)
    assert len(layer) == 6


def test_mixed_layers_take_the_whole_cache() -> None:
    found = rv.design(512, slots=6, heads=2, layers=2)
    assert found[0].figures.max_hops == found.least.max_hops == fewest_hops(24, 512)
    assert found[0].figures.slots <= 6
    assert sum(count for layer in found[0].structure.layers for count, _ in layer) == 4


def test_bounds_hold_for_mixes() -> None:
    """Closed forms against breadth-first search through layers whose paths stay in a head."""
    for layers in [1, 2]:
        for names in [("order:3", "binomial:2,lazy"), ("fenwick", "local:4"), ("first-order", "exponential+cache")]:
            n, shape = 24, Shape(layers, 2, 4)
            structure = Structure((tuple((1, rv.pattern(name)) for name in names),) * layers)
            least = least_of(structure, n, shape)
            matrix = stack_by_search([[rv.pattern(name) for name in names]] * layers, n)
            pairs = [matrix[j].get(i, math.inf) for j in range(n) for i in range(j + 1, n)]
            assert least.max_hops <= max(pairs)
            assert least.mean_hops <= sum(pairs) / len(pairs)
            within = least_within(Budget(slots=structure.slots(n, shape)), n, shape)
            assert within.max_hops <= least.max_hops
            assert within.congestion <= least.congestion


def stack_by_search(layers: list[list[rv.Pattern]], n: int) -> list[dict[int, int]]:
    """Hops from each j to each i, layer by layer: what one head reaches, from all that is reached so far."""
    result = []
    for j in range(n):
        reached = {j: 0}
        for heads in layers:
            after = dict(reached)
            for p in heads:
                rows = [set(p.stages[-1].sources(i).tolist()) if p.recurrent else set() for i in range(n)]
                first = [set(p.stages[0].sources(i).tolist()) if p.direct == "all" else set() for i in range(n)]
                for start, hops in reached.items():
                    for i, more in breadth_first_hops(rows, start, first).items():
                        after[i] = min(after.get(i, math.inf), hops + more)
            reached = after
        result.append(reached)
    return result


def test_impossible_budgets_name_the_bound() -> None:
    for budget, message in (
        ({"slots": 8, "max_hops": 2}, r"max_hops ≤ 2 .*: 5 is the least, since n ≤ C\(s \+ h, s\).*slots ≥ 44"),
        ({"kib": 4, "max_hops": 2}, r"2 hops would take kib ≥ 11"),
        ({"slots": 8, "congestion": 100}, r"≤ 100 .*: 128 is the least.*slots × congestion ≥ n - 1.*slots ≥ 11"),
        ({"reads": 2, "max_hops": 5}, r"10 is the least, since n ≤ 1 \+ r.* 5 hops would take reads ≥ 4"),
        ({"slots": 8, "mean_hops": 2}, r"lower bound, since n ≤ C"),
        ({"slots": 0.5}, r"no room for one position; expected slots ≥ 1, which is 0.25 KiB"),
        ({}, r"expected a budget on at least one of slots, kib"),
        ({"slots": -1}, r"slots, cache slots of a head.*: expected a number > 0, got -1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rv.design(1024, heads=1, **budget)


@pytest.mark.parametrize("budget", [{"kib": 0.3}, {"madds": 10}, {"slots": 8, "reads": 3, "congestion": 34}], ids=str)
def test_the_nearest_budgets_can_be_met(budget: dict[str, float]) -> None:
    """Where no bound forbids a budget that nothing fits, each of those named fits something; their label says what."""
    with pytest.raises(ValueError, match="The nearest budgets that can be met") as error:
        rv.design(256, heads=2, **budget)
    named = re.findall(r"(\w+) ≤ ([\d.,]*\d) \(", str(error.value))
    assert named
    for name, value in named:
        relaxed = budget | {name: float(value.replace(",", ""))}
        assert relaxed[name] > budget[name]
        assert rv.design(256, heads=2, **relaxed)[0].figures.value(name) <= relaxed[name]


def test_rankings() -> None:
    by_reads = rv.design(512, slots=16, heads=1, order=["reads", "max_hops"])
    assert by_reads[0].figures.reads == min(each.figures.reads for each in by_reads.frontier)
    weighted = rv.design(512, slots=16, heads=1, weights={"reads": 1, "max_hops": 1})
    scores = [math.log2(each.figures.reads) + math.log2(each.figures.max_hops) for each in weighted.frontier]
    assert scores == sorted(scores)
    with pytest.raises(ValueError, match=r"unknown figure 'hops': expected slots.* Did you mean 'max_hops'\?"):
        rv.design(512, slots=16, order=["hops"])
    with pytest.raises(ValueError, match="got both"):
        rv.design(512, slots=16, order=["reads"], weights={"reads": 1})
    with pytest.raises(ValueError, match="weight of reads to be a number ≥ 0"):
        rv.design(512, slots=16, weights={"reads": math.nan})


def test_a_design_shows_itself() -> None:
    found = rv.design(512, slots=8, heads=4)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "Only some sizes were tried" in text.replace("\n", " ")
    assert "mixed heads" in found.sampled
    assert "window" not in found.sampled
    assert json.loads(found.to_json())["sampled"] == list(found.sampled)
    assert "(proved)" in text
    assert "\n" not in repr(found) + repr(found[0])
    content = json.loads(found.to_json())
    assert [each["label"] for each in content["candidates"]] == [each.structure.label for each in found]
    assert len(found.plot().axes) == 2
    assert found[:2] == tuple(found)[:2]
    assert len(found) == len(list(found))


def test_every_result_is_a_layer() -> None:
    """What a candidate gives as its pattern, a mixer takes."""
    import torch

    for each in rv.design(64, slots=6, heads=2, head_dim=4)[:3]:
        layer = rv.Mixer(dim=8, heads=2, pattern=each.pattern)  # type: ignore[arg-type]
        assert layer(torch.randn(1, 20, 8)).shape == (1, 20, 8)
