"""Studies on text from records made by hand: costs, the frontier, grades both ways, and what is refused."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import resolvent as rv
from resolvent.model import LanguageModel, ModelConfig
from resolvent.studies import render
from resolvent.studies.language import claims, positions
from resolvent.studies.language.figures import by_position, frontier
from resolvent.studies.language.variants import PAPER, Variant, variants
from resolvent.studies.page import page
from resolvent.studies.registry import STUDIES
from resolvent.tasks import Copy, Text
from resolvent.train import Record, RunConfig, TrainConfig
from resolvent.train.evaluations import AccuracyEvaluation, Slice, TextEvaluation
from resolvent.train.record import read_records, write_records
from tests.small_runs import record_of

CONFIG = ModelConfig(layers=2, dim=32, heads=2)
TEXT = Text("out/text/words", 64, tokenizer="bytes", sha256="s")


def evaluation(perplexity: float, context: int = 64) -> TextEvaluation:
    """The same everywhere in the first half of the context, and a loss of 2 in the second."""
    loss, half = math.log(perplexity), context // 2
    by_position = (Slice(0, half - 1, 9, loss), Slice(half, context - 1, 9, 2.0))
    return TextEvaluation("validation", context, context, loss, perplexity, 18, by_position, loss / math.log(2))


def record(
    structure: Any, perplexity: float, seed: int = 0, rule: Any = "softmax", lengths: dict[int, float] | None = None,
    **model: Any,
) -> Record:  # fmt: skip
    """Of a run on 64 tokens, with perplexities at other lengths."""
    shape = ModelConfig.from_dict(CONFIG.to_dict() | {"pattern": structure, "rule": rule} | model)
    return record_of(
        config=RunConfig(shape, TEXT, TrainConfig(seed=seed, learning_rate=0.002)),
        parameters=25_000,
        steps=100,
        tokens=10_000,
        evaluation=evaluation(perplexity),
        lengths=tuple(evaluation(p, n) for n, p in (lengths or {}).items()),
    )


def graded(study: str, records: Sequence[Record]) -> dict[str, str]:
    """Grades by what is compared."""
    return {each.comparison: each.grade for each in STUDIES[study].report(records).claims.graded}


def of(**perplexities: Sequence[float]) -> dict[str, Variant]:
    """Variants of structures by name, with `_` for what a keyword cannot hold."""
    names = {name.replace("_c", "+cache").replace("_", "-").replace("8", ":8"): p for name, p in perplexities.items()}
    found = variants([record(name, p, seed) for name, each in names.items() for seed, p in enumerate(each)])
    return {variant.name: variant for variant in found}


# Costs


@pytest.mark.parametrize(("structure", "rule", "model"), [
    *((spec, "softmax", {}) for spec in rv.PAPER_STRUCTURES),
    ("first-order", "mamba2", {}),
    ("first-order", "mamba1:conv=4,state=2", {}),
    ("dense", "tied", {"kv_heads": 1}),
    (["local:4", "quadratic+cache"], ["softmax", "joint"], {}),
    ([["dense", "dense", "first-order", "order:3"], "exponential"], "softmax", {"heads": 4}),
])  # fmt: skip
def test_costs_are_those_of_the_model(structure: Any, rule: Any, model: dict[str, Any]) -> None:
    made = record(structure, 5.0, rule=rule, **model)
    [found] = variants([made])
    whole = LanguageModel.shape_only(made.config.model).profile(64)
    assert found.mixing_madds == pytest.approx(whole.mixing_share * whole.madds_per_token)
    assert found.cache_bytes == whole.cache_bytes


def test_variants_group_and_sort() -> None:
    records = [record("dense", 4.0, 1), record("dense", 5.0, 0), record("dense", 6.0, 0, "tied")]
    first, second = variants(records)
    assert (first.name, first.perplexities) == ("dense", pytest.approx([5.0, 4.0]))
    assert (second.name, second.rule, second.bits) == ("dense · tied", "tied", pytest.approx([math.log2(6)]))
    assert first.milliseconds == pytest.approx(3600)
    mixed = variants([record(["local:2", "dense"], 4.0)])[0]
    assert (mixed.structure, mixed.kind, mixed.growth) == ("local:2 | dense", "recurrent", ("", ""))


def test_what_cannot_be_compared_is_refused() -> None:
    other = record("dense", 5.0)
    for change, message in (
        ({"sha256": "t"}, "different texts.*expected one sha256 in all records, got s, t"),
        ({"context": 32}, "expected one context in all records, got 32, 64"),
    ):
        changed = dataclasses.replace(other, config=dataclasses.replace(other.config, task=TEXT.changed(change)))
        with pytest.raises(ValueError, match=message):
            variants([record("dense", 4.0), changed])
    config = RunConfig(CONFIG, Copy(vocab_size=20, length=8), TrainConfig())
    other = dataclasses.replace(record("dense", 5.0), config=config, evaluation=AccuracyEvaluation(0.5, 0.5, 9))
    with pytest.raises(ValueError, match="expected records of runs on text, got one on 'copy'"):
        variants([record("dense", 4.0), other])


# The frontier


def test_frontier_has_the_points_that_no_other_is_better_than() -> None:
    """In the order of their cost; of all lists of three points on a grid."""
    for points in itertools.product(itertools.product((1, 2, 3), repeat=2), repeat=3):
        kept = [p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
        indices = frontier(points)
        assert len(set(indices)) == len(kept)
        assert [points[index] for index in indices] == sorted(kept)


# Grades


@pytest.mark.parametrize(("one", "other", "relation", "grade"), [
    ([5.0, 5.1], [5.2, 5.3], "better", "supported"),
    ([5.2, 5.3], [5.0, 5.1], "better", "contradicted"),
    ([5.0, 5.3], [5.2, 5.4], "better", "open"),
    ([5.0, 5.0], [5.02, 5.02], "better", "open"),  # 0.4 %
    ([5.0], [5.08], "better", "open"),  # 1.6 % of a single seed
    ([5.0], [5.08, 5.08], "better", "open"),  # of one on either side
    ([5.0], [5.15], "better", "supported"),
    ([5.0], [], "better", "not run"),
    ([5.01, 5.0], [5.0, 5.0], "no worse", "supported"),
    ([4.0, 4.0], [5.0, 5.0], "no worse", "supported"),
    ([5.1, 5.1], [5.0, 5.0], "no worse", "contradicted"),
    ([5.1], [5.0], "no worse", "open"),
    ([], [5.0], "no worse", "not run"),
    ([5.08, 5.05], [5.0, 5.01], "close", "supported"),
    ([4.0, 4.0], [5.0, 5.0], "close", "supported"),
    ([5.15, 5.05], [5.0, 5.01], "close", "open"),
    ([5.4, 5.3], [5.0, 5.01], "close", "contradicted"),
    ([5.4], [], "close", "not run"),
])  # fmt: skip
def test_compared(one: list[float], other: list[float], relation: Any, grade: str) -> None:
    found = of(**{name: each for name, each in (("dense", one), ("attention", other)) if each})
    assert claims.Compared("", "dense", "attention", relation).grade(found) == grade


@pytest.mark.parametrize(("middle", "grade"), [
    ([5.3, 5.35], "supported"),
    ([5.3, 5.6], "open"),
    ([5.7, 5.8], "contradicted"),
    ([5.45], "open"),  # 54 %, with a single seed
    ([5.3], "supported"),
    ([4.0], "supported"),  # beyond the far end
    ([7.0], "contradicted"),
])  # fmt: skip
def test_most_of_the_way(middle: list[float], grade: str) -> None:
    found = of(first_order=[6.0, 6.0], quadratic=middle, attention=[5.0, 5.0])
    assert claims.Most("", "quadratic", "attention").grade(found) == grade
    assert claims.Most("", "quadratic", "dense").grade(found) == "not run"
    level = of(first_order=[5.0, 5.0], quadratic=middle, attention=[5.0, 5.0])
    assert claims.Most("", "quadratic", "attention").grade(level) == "open"  # there is no way to go


@pytest.mark.parametrize(("quadratic", "grade"), [
    ([5.2, 5.2], "supported"),
    ([5.48, 5.5], "open"),
    ([5.8, 5.8], "contradicted"),
])  # fmt: skip
def test_a_curve(quadratic: list[float], grade: str) -> None:
    (curve,) = (each for each in claims.PARETO if isinstance(each, claims.Curve))
    found = of(first_order=[6, 6], exponential=[5.5, 5.5], exponential_c=[5.9, 5.9], quadratic=quadratic, dense=[5, 5])
    assert curve.grade(found) == grade
    assert curve.grade({name: v for name, v in found.items() if name != "dense"}) == "not run"


def test_the_papers_numbers_support_its_ablation() -> None:
    ours, theirs = "softmax:gate=mamba", "mamba1:state=1"
    records = [record("first-order", PAPER[f"first-order · {rule}"], rule=rule) for rule in (ours, theirs)]
    claim = f"first-order · {theirs} < first-order · {ours}"
    assert graded("mamba", records)[claim] == "supported"
    assert set(graded("mamba", records[:1]).values()) == {"not run"}


@pytest.mark.parametrize(("rule", "more", "grade"), [
    ("mamba2:state=1", {}, "supported"),
    ("mamba2:state=1", {"parameters": 25_250}, "supported"),
    ("mamba2:state=1", {"parameters": 25_251}, "open"),  # more than 1 %
    ("mamba1:state=1", {"parameters": 24_000}, "open"),
])  # fmt: skip
def test_only_like_for_like_counts(rule: str, more: dict[str, int], grade: str) -> None:
    records = [record("first-order", 6.0, rule="softmax:gate=mamba"),
               dataclasses.replace(record("first-order", 5.0, rule=rule), **more)]  # fmt: skip
    assert graded("mamba", records)[f"first-order · {rule} < first-order · softmax:gate=mamba"] == grade
    wide = [record("first-order", 6.0), record("first-order", 5.0, rule="mamba2")]  # 16 × the cache
    assert graded("mamba", wide)["first-order · mamba2 < first-order"] == "open"


@pytest.mark.parametrize(("rule", "others"), [
    ("mamba2:state=4,decay=0.5", {"first-order": "softmax:conv=4"}), ("mamba2:decay=0.5", {"order:4": "softmax"}),
])  # fmt: skip
def test_states_against_the_same_cache(rule: str, others: dict[str, str]) -> None:
    [(structure, other)] = others.items()
    name = structure if other == "softmax" else f"{structure} · {other}"
    records = [record("first-order", 5.0, rule=rule), record(structure, 5.5, rule=other)]
    found = variants(records)
    assert found[0].cache_bytes == found[1].cache_bytes
    assert graded("mamba", records)[f"first-order · {rule} < {name}"] == "supported"


def test_sharing_and_normalization_grade_every_structure() -> None:
    rules = {"softmax": 5.0, "tied": 5.05, "joint": 4.8, "softmax:gate=0.5": 5.2}
    records = [record(structure, p + 0.001 * seed, seed, rule)
               for structure in ("dense", "order:8") for rule, p in rules.items() for seed in (0, 1)]  # fmt: skip
    found = variants(records)
    shared = graded("sharing", records)
    assert shared["multiply-adds of dense · tied < multiply-adds of dense"] == "supported"
    assert shared["cache of order:8 · tied < cache of order:8"] == "supported"
    assert shared["order:8 · tied ≲ order:8"] == "supported"
    assert len(shared) == 6
    kept = graded("normalization", records)
    assert kept["dense < dense · softmax:gate=0.5"] == "supported"
    assert kept["order:8 · joint overflows"] == "circumvented"
    assert kept["dense < dense · joint"] == "contradicted"
    records[-4] = dataclasses.replace(records[-4], skipped_steps=1)  # of order:8 · joint
    assert claims.Overflows("", "order:8 · joint").grade({v.name: v for v in variants(records)}) == "open"
    backwards = claims.Cheaper("", "dense", "order:8", "cache")
    assert backwards.grade({v.name: v for v in found}) == "contradicted"
    assert (
        backwards.grade({})
        == claims.Overflows("", "dense").grade({})
        == positions.Keeps("", "dense").grade({})
        == "not run"
    )


@pytest.mark.parametrize(("study", "lengths", "grade"), [
    ("length", [{64: 5.0, 128: 6.0, 256: 4.9}, {64: 5.5, 256: 5.5}], "supported"),  # the longest counts, seed by seed
    ("length", [{64: 5.0, 256: 4.9}, {64: 5.5, 256: 5.6}], "open"),
    ("length", [{64: 5.0, 256: 5.1}, {64: 5.5, 256: 5.6}], "contradicted"),
    ("length", [{64: 5.0, 256: 5.05}], "open"),
    ("length", [{64: 5.0}], "not run"),
    ("ladder", [{16: 5.1, 64: 5.0}, {16: 5.1, 64: 5.0}], "supported"),
    ("ladder", [{16: 5.05, 64: 5.0}], "open"),  # 1 % of a single seed
    ("ladder", [{16: 5.0, 64: 5.2}], "contradicted"),
    ("ladder", [{16: 5.1, 64: 5.0}, {16: 5.0, 64: 5.0}], "open"),
    ("ladder", [{}], "not run"),
])  # fmt: skip
def test_other_lengths(study: str, lengths: list[dict[int, float]], grade: str) -> None:
    """Whether the perplexity is kept beyond the trained length, and whether it falls with the context."""
    records = [record("dense", 5.0, seed, lengths=each) for seed, each in enumerate(lengths)]
    claim = {"length": "dense keeps its perplexity", "ladder": "dense uses its context"}[study]
    assert graded(study, records)[claim] == grade


def with_ropes() -> list[Record]:
    """Two structures, one of which was trained in two ways and measured in two, and first order, which has neither."""
    made = []
    for seed in (0, 1):
        for structure in ("attention", "exponential+cache"):
            plain = record(structure, 5.0, seed, lengths={64: 5.0, 512: 9.0})
            other = [dataclasses.replace(evaluation(p, n), rope="capped:within=63") for n, p in ((64, 5.0), (512, 4.9))]
            made += [dataclasses.replace(plain, lengths=(*plain.lengths, *other)),
                     record(structure, 5.1, seed, lengths={64: 5.1, 512: 5.0}, rope="near:within=16")]  # fmt: skip
        made.append(record("first-order", 6.0, seed, lengths={64: 6.0, 512: 5.9}))
    return made


def test_positions_are_told_apart(tmp_path: Path) -> None:
    records = with_ropes()
    write_records(records, tmp_path / "length-ropes.jsonl")
    assert read_records(tmp_path / "length-ropes.jsonl") == records
    grades = graded("length", records)
    assert grades == {
        "attention keeps its perplexity": "contradicted",
        "attention · → capped:within=63 keeps its perplexity": "supported",
        "attention · near:within=16 keeps its perplexity": "supported",
        "exponential+cache keeps its perplexity": "contradicted",
        "exponential+cache · → capped:within=63 keeps its perplexity": "supported",
        "exponential+cache · near:within=16 keeps its perplexity": "supported",
        "first-order keeps its perplexity": "supported",
    }
    text = render.markdown(STUDIES["length"].report(records))
    hours = sum(each.seconds for each in records) / 3600
    assert f"{hours:.1f} hours in all" in text  # each run once
    found = {v.name: v for v in variants(records)}
    capped, plain = found["attention · → capped:within=63"], found["attention"]
    assert capped.cache_bytes > plain.cache_bytes  # keys are kept for near and for far reads


# What is written


def nine(**options: Any) -> list[Record]:
    heights = (4.9, 5.9, 5.7, 5.35, 4.85, 5.1, 5.15, 5.0, 5.08)
    return [record(spec, p * (1 + 0.004 * seed), seed, **options)
            for spec, p in zip(rv.PAPER_STRUCTURES, heights, strict=True) for seed in (0, 1, 2)]  # fmt: skip


def test_nothing_graded_nothing_claimed() -> None:
    """A table of claims without a row is not published, nor is its rule."""
    report = STUDIES["pareto"].report([record("attention", 5.0), record("first-order", 6.0)])
    assert {each.grade for each in report.claims.graded} == {"not run"}
    shown = page(report, "A <title>")
    assert "A &lt;title&gt;" in shown
    assert not re.search("https?://", shown)
    for text in (render.markdown(report), shown):
        assert report.claims.rule not in text
        assert "grade" not in text


def test_a_ladder_without_what_the_text_offers_has_the_models_alone() -> None:
    report = STUDIES["ladder"].report(nine(lengths={16: 5.4, 32: 5.2, 64: 5.0}))
    text = render.markdown(report)
    assert f"| {math.log(5.4 / 5.0):.3f} ± 0.000 |" in text
    assert "n-gram cache |" not in text
    assert report.figures[0].draw().axes


def test_positions_are_middles() -> None:
    [found] = variants([record("dense", 5.0, lengths={64: 5.0, 128: 4.0})])
    assert by_position(found) == [(32.5, pytest.approx([4.0])), (96.5, pytest.approx([math.exp(2)]))]


def test_scores_are_on_the_scale_that_is_stated() -> None:
    stated = [math.log(ratio) for ratio in (1.005, 1.02, 1.02, 1.05)]
    assert dataclasses.astuple(claims.PERPLEXITY) == pytest.approx(stated)


@pytest.mark.parametrize(("spec", "kind"), [
    ("local:8", "attention"),
    ("dense", "recurrent"),
    ("binomial:8", "cache-efficient"),
    ("bigbird:4,2,2", "recurrent"),
    ("butterfly+attention", "attention"),
    ("attention/exponential+cache", "recurrent"),
    ("local:8/exponential+cache", "cache-efficient"),
])  # fmt: skip
def test_kinds_follow_from_facts(spec: str, kind: str) -> None:
    [variant] = variants([record(spec, 20.0)])
    assert variant.kind == kind
