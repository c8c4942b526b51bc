"""The paper's figures 1 to 3: what is drawn is what the patterns and the records say."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from typer.testing import CliRunner

import resolvent as rv
from resolvent.analysis import growth
from resolvent.cli import app
from resolvent.patterns.pattern import Part
from resolvent.report.formulation import EXAMPLES, formulation_figure, graph
from resolvent.report.sparsity import COLORS, STRUCTURES, sparsity_figure
from resolvent.studies.grade import mean
from resolvent.studies.language.complexity import REGIMES, complexity_figure
from resolvent.studies.language.variants import variants
from resolvent.train.record import read_records

RECORDS = Path(__file__).parents[2] / "docs" / "records"
PARTS: tuple[Part, ...] = ("a", "b")


def drawn_entries(axes: Axes) -> np.ndarray:
    """The colored cells of a matrix."""
    [image] = axes.images
    return np.asarray(image.get_array()) == 2


def matrices(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images]


@pytest.mark.parametrize("n", [4, 9, 32])
def test_figure_2_shows_the_entries_and_the_costs(n: int) -> None:
    figure = sparsity_figure(n)
    names = [name for row in STRUCTURES for name in row]
    assert sorted(names) == sorted(rv.PAPER_STRUCTURES)
    expected = [rv.pattern(name).mask(n, part) for name in names for part in PARTS]
    for axes, mask in zip(matrices(figure), expected, strict=True):
        assert np.array_equal(drawn_entries(axes), mask)
    texts = [text.get_text() for text in figure.texts]
    for name in names:
        p, law = rv.pattern(name), growth(rv.pattern(name))
        assert name in texts
        cost = f"reads {p.widest_row(1024):,}, {law.reads_per_token}  ·  cache {p.slots(1024):,}, {law.cache_slots}"
        assert cost in texts


@pytest.mark.parametrize("n", [4, 8, 12])
def test_figure_1_shows_the_entries(n: int) -> None:
    expected = [rv.pattern(spec).mask(n, part) for _, spec, _ in EXAMPLES for part in PARTS]
    for axes, mask in zip(matrices(formulation_figure(n)), expected, strict=True):
        assert np.array_equal(drawn_entries(axes), mask)


@pytest.mark.parametrize("spec", [spec for _, spec, _ in EXAMPLES])
def test_figure_1_has_an_edge_for_each_entry(spec: str) -> None:
    """Inputs at height 0, outputs at height 1: A leads from input j to output i, B from output j to output i."""
    n, axes = 7, Figure().subplots()
    graph(axes, rv.pattern(spec), n, named=True)
    for part, height in zip(PARTS, (0, 1), strict=True):
        mask = np.zeros((n, n), dtype=np.bool_)
        for edge in axes.patches:
            assert isinstance(edge, PathPatch)
            if to_hex(edge.get_edgecolor()) == COLORS[part]:
                ends = edge.get_path().vertices
                assert (ends[0, 1], ends[-1, 1]) == (height, 1)
                mask[int(ends[-1, 0]), int(ends[0, 0])] = True
        assert np.array_equal(mask, rv.pattern(spec).mask(n, part))
    assert "$x_1$" in [text.get_text() for text in axes.texts]


def test_figure_3_shows_the_records() -> None:
    runs = variants(read_records(RECORDS / "pareto-laptop.jsonl"))
    [axes] = complexity_figure([runs]).axes
    for variant, container in zip(runs, axes.containers, strict=True):
        [x], [y] = container.lines[0].get_data()
        assert y == mean(variant.perplexities)
        paper = {"first-order": "O(1)", "order:8": "O(k)", "local:8": "O(k)", "attention": "O(n)", "dense": "O(n)"}
        regime = paper.get(variant.name, "O(log n)" if "exponential" in variant.name else "O(√n)")
        assert round(x) == REGIMES.index(regime)
    assert {text.get_text() for text in axes.texts} >= {variant.name for variant in runs}


@pytest.mark.parametrize(
    ("name", "suffix", "begin"),
    [("1", "png", b"\x89PNG"), ("2", "svg", b"<?xml"), ("3", "pdf", b"%PDF"), ("frontier", "png", b"\x89PNG")],
)
def test_command_writes_the_file(name: str, suffix: str, begin: bytes, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"figure.{suffix}"
    options = ["--records", str(RECORDS / "pareto-quick.jsonl")] if name == "3" else ["--n", "6"]
    done = CliRunner().invoke(app, ["figure", name, "--out", str(out), *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert out.read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4"], "expected figure 1, 2, 3 or frontier, got 4."),
        (["1", "--n", "100"], "expected 4 ≤ n ≤ 12 tokens to draw, got 100."),
        (["2", "--n", "2"], "expected 4 ≤ n ≤ 128 tokens to draw, got 2."),
        (["3", "--n", "8"], "figure 3 is drawn from records: expected no --n with it."),
        (["2", "--records", "x.jsonl"], "figure 2 is drawn from patterns: --records goes with figure 3."),
        (["3"], "expected records in docs/records/pareto-*.jsonl, got none"),
        (["3", "--records", str(RECORDS / "table1-small.jsonl")], "expected records of runs on text, got one on"),
        (["1", "--out", "x.jpg"], "ends in .png, .pdf, .svg, got 'x.jpg'"),
    ],
)
def test_errors_say_what_was_expected(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["figure", *arguments])
    assert isinstance(done.exception, ValueError)  # which the command line says in one line
    assert message in str(done.exception)


def test_published_figures_are_small() -> None:
    for number in (1, 2, 3):
        assert (RECORDS.parent / "figures" / f"figure-{number}.png").stat().st_size < 200_000
