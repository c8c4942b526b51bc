"""What is drawn is what the patterns, the records and the bounds say: the paper's figures and the frontier."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.text import Annotation

import resolvent as rv
from docs.drawings import frontier
from docs.drawings.complexity import REGIMES, complexity_figure
from docs.drawings.formulation import EXAMPLES, formulation_figure, graph
from docs.drawings.sparsity import COLORS, STRUCTURES, sparsity_figure
from docs.make import DRAWINGS
from resolvent.analysis import growth
from resolvent.analysis.frontier import fewest_hops, least_cache
from resolvent.patterns.pattern import Part
from resolvent.studies.grade import mean
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


def test_figure_2_shows_the_entries_and_the_costs() -> None:
    n = 9
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


def test_figure_1_shows_the_entries() -> None:
    n = 8
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


def test_published_figures_are_small() -> None:
    for name in DRAWINGS:
        assert (RECORDS.parent / "figures" / f"{name}.png").stat().st_size < 200_000


# The frontier


@pytest.mark.parametrize("n", [8, 100])
def test_no_pattern_is_beyond_the_frontier(n: int) -> None:
    points = frontier.pattern_points(rv.PAPER_STRUCTURES, n)
    assert [point.name for point in points] == list(rv.PAPER_STRUCTURES)
    for point in points:
        assert point.hops >= fewest_hops(point.cache, 2 * n)
        assert point.cache * point.congestion >= n
        if not math.isinf(point.hops):
            assert point.cache >= least_cache(int(point.hops), int(point.congestion), n)


def test_corners_need_their_cache() -> None:
    corners = frontier.frontier_points(256)
    assert [point.cache for point in corners] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 511]
    assert [point.hops for point in corners] == [511, 31, 9, 5, 3, 2, 2, 2, 2, 1]
    for point in corners:
        assert least_cache(int(point.hops), int(point.congestion), 256) == point.cache


def test_names_cover_neither_each_other_nor_the_edge() -> None:
    figure = frontier.frontier_figure(256)
    assert "no path at all: local:8" in figure.get_suptitle()
    figure.draw_without_rendering()
    for axes in figure.axes:
        names = [text for text in axes.texts if isinstance(text, Annotation) and text.get_zorder() == 5]
        assert len(names) >= 6
        boxes = [name.get_window_extent() for name in names]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        area = axes.get_window_extent()
        assert all(area.x0 <= box.x0 and box.x1 <= area.x1 for box in boxes)
