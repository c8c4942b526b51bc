"""What notebooks show: HTML that is well-formed, escaped and has the numbers; and a repr of one line for everything."""

from pathlib import Path

import pytest
import torch

import resolvent as rv
from resolvent import notebook
from resolvent.ops import Cache
from resolvent.train.record import Record, read_records
from tests.markup import Markup

RECORDS = Path(__file__).parent.parent / "docs" / "records"
PATTERNS = [*rv.PAPER_STRUCTURES, "local:4/exponential+cache", "quadratic+diagonal", "bigbird:4,2,2", "local:1"]


def record(name: str) -> Record:
    return read_records(RECORDS / f"{name}.jsonl")[0]


def caches() -> dict[str, object]:
    layer = rv.Mixer(64, 4, "exponential+cache")
    _, used = layer.extend(torch.zeros(2, 10, 64), max_tokens="128k")
    model = rv.LanguageModel(rv.preset("tiny", pattern=["dense", "exponential+cache", "dense", "local:8"]))
    return {
        "one": used,
        "pair": rv.decode_cache("local:8/exponential+cache", 2, 4, 16, 16, max_tokens=100),
        "state": rv.Mixer(64, 4, "first-order", rule="mamba2").make_cache(3),
        "model": model.make_cache(1, 100),
    }


def shown(value: object) -> Markup:
    return Markup(value._repr_html_())  # type: ignore[attr-defined]


@pytest.mark.parametrize("spec", PATTERNS)
def test_a_pattern_is_drawn_with_its_cost(spec: str) -> None:
    p = rv.pattern(spec)
    html = shown(p)
    assert f"{p.widest_row(1024):,} at most" in html.text
    assert f"{p.slots(1024):,} slots" in html.text
    [picture] = html.named("svg")
    assert picture["role"] == "img"
    assert picture["aria-label"] == f"{spec}: the entries of A and B on 24 tokens"
    drawn = sum((path["d"] or "").count("M") for path in html.named("path")[1:])
    assert drawn == (p.mask(24, "a") | p.mask(24, "b")).sum()


def test_a_pattern_that_ends_is_drawn_to_its_end() -> None:
    table = rv.explicit(lambda i: [i // 2] if i else [], n=6)
    assert "on 6 tokens" in shown(table).text
    assert f"{table.slots(6)} slots" in shown(table).text


@pytest.mark.parametrize("spec", [*rv.PAPER_STRUCTURES, "explicit"])
def test_profiles_show_what_they_print(spec: str) -> None:
    p = rv.explicit(lambda i: [i - 1] if i else [], n=64) if spec == "explicit" else rv.pattern(spec)
    profile = rv.analyze(p, 64)
    words = shown(profile).text.split()
    assert [word for word in str(profile).split() if word not in words] == []
    assert str(p) in repr(profile)


def test_comparisons_show_what_they_print() -> None:
    comparison = rv.compare("local:8", "exponential+cache", n=64)
    html = shown(comparison)
    for line in str(comparison).splitlines():
        assert [word for word in line.split() if word not in html.text] == []
    assert len(html.named("tr")) == 3


@pytest.mark.parametrize("value", [rv.analyze("quadratic+cache", 64), rv.compare("local:8", "dense", n=64)], ids=repr)
def test_plots_show_themselves_with_a_description(value: rv.Profile | rv.Comparison) -> None:
    html = shown(value.plot())
    [image] = html.named("img")
    assert (image["src"] or "").startswith("data:image/png;base64,")
    names = [str(value.pattern)] if isinstance(value, rv.Profile) else [str(each.pattern) for each in value]
    assert all(name in (image["alt"] or "") for name in names)


@pytest.mark.parametrize("name", ["table1-small", "pareto-quick", "length-quick"])
def test_records_show_result_cost_and_curve(name: str) -> None:
    own = record(name)
    html = shown(own)
    for needed in (own.config.title, str(own.evaluation), f"{own.parameters:,}", f"{own.steps:,}", str(own.seed)):
        assert needed in html.text
    [picture] = html.named("svg")
    assert f"{own.curve[-1].loss:.3g} at step {own.curve[-1].step:,}" in (picture["aria-label"] or "")
    [line] = html.named("polyline")
    assert len((line["points"] or "").split()) == len(own.curve)


@pytest.mark.parametrize("name", caches())
def test_caches_show_their_tensors_and_size(name: str) -> None:
    cache = caches()[name]
    assert isinstance(cache, Cache)
    text = shown(cache).text
    assert f"{cache.nbytes:,} bytes" in text
    rows = cache if name in ("pair", "model") else cache.tensors
    assert all(each in text for each in rows)
    if name == "one":
        assert "17 slots for 131,072 tokens" in text
        assert "10 tokens seen" in text


def test_a_repr_is_one_short_line() -> None:
    model = rv.LanguageModel(rv.preset("tiny", pattern="dense"))
    profile, own = rv.analyze("exponential+cache", 256), record("table1-small")
    values = [profile, profile.congestion, rv.congestion("local:4", 64), rv.compare(n=32), model.profile(64), own,
              own.evaluation, record("pareto-quick").evaluation, *caches().values()]  # fmt: skip
    assert profile.congestion is not None
    values.append(profile.congestion.routing)
    for value in values:
        assert "\n" not in repr(value)
        assert len(repr(value)) <= 160, repr(value)
        assert repr(value).startswith(type(value).__name__ + "(")


def test_all_text_is_escaped() -> None:
    sharp = "<b a='x' b=\"y\">&"
    for made in (
        notebook.table(sharp, [(sharp, sharp)], head=(sharp, sharp), notes=(sharp,)),
        notebook.table(sharp, [(sharp, sharp)]),
        notebook.drawing({"A only": [(0, 0)]}, 1, sharp),
        notebook.curve([(0, 1), (1, 2)], sharp, sharp, sharp),
    ):
        html = Markup(made)
        assert [tag for tag, _ in html.tags if tag == "b"] in ([], ["b"])  # of a title, our own
        assert sharp in html.text or any(sharp in (a.get("aria-label") or "") for a in html.named("svg"))


def test_curves_of_nothing_draw_nothing() -> None:
    assert notebook.curve([], "", "step", "loss") == ""
    assert notebook.curve([(1.0, float("nan")), (2.0, 1.0)], "", "step", "loss") == ""
    Markup(notebook.curve([(1.0, 1.0), (2.0, 1.0)], "", "step", "loss"))  # without a range
