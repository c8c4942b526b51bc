"""What the page is told is what the library says."""

import base64
import json
import zlib

import numpy as np
import pytest

import resolvent as rv
from resolvent.errors import SettingError
from resolvent.explore.answers import ANSWERS, answer, packed, packed_bits
from tests.operator_cases import ALL

N = 24


def integers(text: str) -> list[int]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i4").tolist()


def bits(text: str, n: int) -> np.ndarray:
    rows = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(n, -1)
    return np.unpackbits(rows, axis=1)[:, :n].astype(bool)


def test_packing_keeps_everything() -> None:
    mask = np.random.default_rng(0).random((13, 13)) < 0.3
    assert np.array_equal(bits(packed_bits(mask), 13), mask)
    assert integers(packed(np.array([-1, 0, 2**30]))) == [-1, 0, 2**30]


def test_a_scene_is_the_pattern() -> None:
    for spec in ALL:
        p, shown = rv.pattern(spec), answer("scene", {"p": spec, "n": f"{N}"})
        a, b = (np.tril(p.mask(N, part), -1) for part in ("a", "b"))
        entries = {name: bits(text, N) for name, text in shown["entries"].items()}
        expected = {"A and B": a & b, "A only": a & ~b, "B only": b & ~a}
        for name, mask in expected.items():
            assert np.array_equal(entries.get(name, np.zeros_like(mask)), mask), name
        assert integers(shown["reads"]) == [p.reads(i) for i in range(N)]
        assert shown["spelling"] == p.spelling


def test_slots_hold_what_is_read_and_nothing_twice() -> None:
    """The bars of the cache, as the page draws them: slot, first token and last reader of each position."""
    for spec in ALL:
        stages = rv.pattern(spec).stages
        for stage, shown in zip(stages, answer("scene", {"p": spec, "n": f"{N}"})["stages"], strict=True):
            slot, last = integers(shown["slot"]), integers(shown["last"])
            for t in range(N):
                held = {slot[j]: j for j in range(t) if slot[j] >= 0 and last[j] >= t}
                assert len(held) == sum(slot[j] >= 0 and last[j] >= t for j in range(t)), "two positions in one slot"
                assert set(stage.sources(t).tolist()) <= set(held.values())
                assert all(0 <= each < shown["slots"] for each in held)


def test_paths_are_those_of_the_library() -> None:
    shown = answer("paths", {"p": "quadratic+cache", "n": f"{N}", "to": "20"})
    assert integers(shown["hops"]) == rv.hop_matrix("quadratic+cache", N)[20, :21].tolist()


@pytest.mark.parametrize("effort", ["quick", "search"])
def test_load_is_of_a_routing_within_its_bounds(effort: str) -> None:
    shown = answer("load", {"p": "exponential+cache", "n": "64", "effort": effort})
    assert max(integers(shown["loads"])) == shown["upper"] >= shown["lower"] == 11
    assert len(integers(shown["loads"])) == 128


def test_what_cannot_be_copied_has_no_load() -> None:
    shown = answer("load", {"p": "local:4", "n": "16", "effort": "quick"})
    assert shown["loads"] is None
    assert shown["text"] == "∞"
    assert "No copy is possible" in shown["note"]


def test_figures_and_curves_agree_with_analyze() -> None:
    profile = rv.analyze("order:8", 256)
    figures = answer("figures", {"p": "order:8", "n": "256", "effort": "search"})
    assert figures["max_hops"] == profile.max_hops
    curves = answer("curves", {"p": "order:8"})
    at = curves["n"].index(256)
    values = {name: curves[name]["values"][at] for name in ("reads", "slots", "hops", "congestion")}
    assert values == {"reads": 8, "slots": 8, "hops": profile.max_hops, "congestion": profile.congestion.lower}
    assert answer("curves", {"p": "local:4"})["hops"]["values"][-1] is None, "infinite"


def test_designs_and_bounds() -> None:
    question = {"n": "256", "slots": "8", "heads": "1"}
    shown, least = answer("designs", question), answer("bounds", question)
    expected = rv.design(256, slots=8, heads=1)
    assert [each["label"] for each in shown["candidates"]] == [each.structure.label for each in expected]
    assert shown["candidates"][0]["figures"]["max_hops"] >= least["max_hops"][least["slots"].index(8)]


def test_answers_are_json() -> None:
    for name, question in [
        ("catalogue", {}),
        ("scene", {"p": "local:2/dense", "n": "1"}),
        ("paths", {"p": "local:2", "n": "9", "to": "8"}),
        ("load", {"p": "first-order", "n": "1", "effort": "search"}),
        ("figures", {"p": "local:3", "n": "4k", "effort": "quick"}),
        ("curves", {"p": "local:2/exponential"}),
        ("bounds", {"n": "128k", "slots": "1"}),
    ]:
        json.dumps(answer(name, question), allow_nan=False)


def test_bad_questions_are_answered_in_the_words_of_the_library() -> None:
    for name, question, message in [
        ("scene", {"p": "exponental", "n": "64"}, "unknown pattern 'exponental'. Did you mean 'exponential'?"),
        ("scene", {"p": "dense", "n": "8k"}, "expected at most 4,096 tokens, got 8,192"),
        ("scene", {"p": "dense", "n": "-3"}, "expected an integer ≥ 1"),
        ("scene", {"p": "stride:9**9**9**k", "n": "64"}, "grows past 1024 bits before it settles"),
        ("paths", {"p": "dense", "n": "64", "to": "64"}, "expected to to be an integer from 0 to 63, got '64'"),
        ("figures", {"p": "dense", "n": "1G", "effort": "quick"}, "expected at most 1,048,576 tokens"),
        ("designs", {"n": "1M", "slots": "8", "heads": "1"}, "expected at most 131,072 tokens"),
        ("designs", {"n": "1k", "slots": "8", "heads": "999"}, "expected heads to be an integer from 1 to 16"),
    ]:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            answer(name, question)
        assert message in str(error.value)


def test_unknown_questions() -> None:
    with pytest.raises(SettingError, match=r"unknown question 'scenes'.*Did you mean 'scene'"):
        answer("scenes", {})
    assert set(ANSWERS) == {"catalogue", "scene", "paths", "load", "figures", "curves", "bounds", "designs"}
