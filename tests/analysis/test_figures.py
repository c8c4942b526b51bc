"""Figures: every panel of every structure draws, and shows the numbers it should."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import resolvent as rv
from resolvent.analysis.figures import labels, palette, panels
from resolvent.report.figures import save

PAGES = ["attention", "local:1", "exponential", "quadratic+cache", "local:4/exponential"]  # of each kind of panel one


@pytest.mark.parametrize("spec", PAGES)
@pytest.mark.parametrize("n", [1, 40])
def test_profile_page(spec: str, n: int, tmp_path: Path) -> None:
    written = save(rv.analyze(spec, n).plot(), tmp_path / "deep" / "page.png")
    assert written.stat().st_size > 10_000


def test_mask_shows_the_mask_in_three_colors() -> None:
    axes = Figure().subplots()
    p = rv.pattern("local:4/exponential")
    panels.mask(axes, p, 30)
    a, b = p.mask(30, "a"), p.mask(30, "b")
    shown, image = np.asarray(axes.images[0].get_array()), axes.images[0]
    regions = {"A": a & ~b, "B": b & ~a, "both": a & b, "none": ~(a | b)}
    assert all(len(set(shown[cells].tolist())) == 1 for cells in regions.values())
    colors = {name: tuple(image.cmap(image.norm(shown[cells][0]))) for name, cells in regions.items()}
    assert len(set(colors.values())) == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A only", "B only", "A and B"]
    lightness = sorted(0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 for r, g, b, _ in colors.values())
    assert all(after > 1.8 * before for before, after in pairwise(lightness))  # told apart without hues, too


@pytest.mark.parametrize("spec", ["exponential+cache", "order:4", "fenwick", "local:4/exponential"])
def test_cache_shows_what_is_held(spec: str) -> None:
    """Slot by slot, on one scale: whatever a token reads is in a slot, and nothing is in two."""
    axes, p = Figure().subplots(), rv.pattern(spec)
    panels.cache(axes, p, 50)
    shown = np.asarray(axes.images[0].get_array(), dtype=float)
    assert len(shown) == p.slots(50)
    for stage in p.stages:
        slots, shown = shown[: stage.slots(50)], shown[stage.slots(50) :]
        for i in range(50):
            held = slots[:, i][~np.isnan(slots[:, i])].tolist()
            assert len(held) == len(set(held))
            assert set(stage.sources(i).tolist()) <= set(held)


def test_growth_curves() -> None:
    axes = Figure().subplots()
    panels.growth(axes, {"reads": (rv.exponential(), "reads"), "slots": (rv.exponential(), "slots")})
    reads, slots = (line.get_ydata() for line in axes.lines)
    assert reads[-1] == 16
    assert slots[-1] == 65_535
    assert [text.get_text() for text in axes.texts] == ["reads", "slots"]


@pytest.mark.parametrize("heights", [[0.1] * 5, [0.0, 0.01, 0.5, 0.5, 1.0], [0.9, 0.1]])
def test_names_at_ends_are_apart_and_in_order(heights: list[float]) -> None:
    places = labels.spread(heights, 0.05)
    order = sorted(range(len(heights)), key=lambda index: (heights[index], -index))
    for before, after in pairwise(order):
        assert places[after] - places[before] > 0.05 - 1e-12
    assert abs(sum(places) - sum(heights)) < 1e-9


def test_structures_have_one_color_and_one_order_in_all_figures() -> None:
    names = [*rv.PAPER_STRUCTURES, "binomial:16", "fenwick"]
    colors = [palette.color_of_structure(name, names) for name in names]
    assert len(set(colors)) == len(names)
    assert palette.color_of_structure("dense", ["fenwick"]) == palette.color_of_structure("dense")
    assert palette.in_order(["fenwick", "dense", "attention", "dense"]) == ["attention", "dense", "fenwick"]
    figure = rv.compare("quadratic", "attention", n=16).plot()
    assert [line.get_label() for line in figure.axes[0].lines] == ["attention", "quadratic"]
    assert figure.axes[0].lines[0].get_color() == palette.color_of_structure("attention")


def test_trade_off_names_what_has_no_path() -> None:
    axes = Figure().subplots()
    panels.trade_off(axes, [rv.analyze(spec, 64) for spec in ("local:8", "dense", "attention")])
    assert "no path at all: local:8" in axes.get_title()
    assert [text.get_text() for text in axes.texts] == ["dense\nattention", "– –  slots × congestion = n - 1"]


def test_names_beside_points_cover_nothing() -> None:
    """However the points lie: on each other, in a row, in corners."""
    figure = Figure(figsize=(6, 4), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = [(0.5, 0.5), (0.5, 0.5), (0.5, 0.52), (0.55, 0.5), (0.02, 0.02), (0.98, 0.98), (0.98, 0.02)]
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    names = [f"structure {number}" for number in range(len(points))]
    bar = ((0.55, 0.2), (0.55, 0.8))
    labels.name_points(axes, points, names, [bar])
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == len(points)
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])
    line = axes.transData.transform(bar)
    assert not any(box.x0 < line[0][0] < box.x1 and box.y0 < line[1][1] and line[0][1] < box.y1 for box in boxes)
    assert all(axes.bbox.contains(x, y) for box in boxes for x, y in box.corners())
