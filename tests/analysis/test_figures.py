"""Figures: every panel of every structure draws, and shows the numbers it should."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import resolvent as rv
from resolvent.analysis.figures import panels
from resolvent.analysis.figures.trade_off import trade_off
from resolvent.report.figures import save


@pytest.mark.parametrize("spec", [*rv.PAPER_STRUCTURES, "local:1", "stride:3*k+2+cache"])
@pytest.mark.parametrize("n", [1, 40])
def test_profile_page(spec: str, n: int, tmp_path: Path) -> None:
    written = save(rv.analyze(spec, n).plot(), tmp_path / "deep" / "page.png")
    assert written.stat().st_size > 10_000


def test_mask_shows_the_mask() -> None:
    axes = Figure().subplots()
    p = rv.pattern("quadratic+cache")
    panels.mask(axes, p, 30)
    shown = axes.images[0].get_array()
    assert np.array_equal(shown, p.mask(30, "a") + 2 * p.mask(30, "b"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A only", "A and B"]


def test_mask_of_a_pair_has_three_colors() -> None:
    axes = Figure().subplots()
    p = rv.pattern("local:4/exponential")
    panels.mask(axes, p, 30)
    a, b = p.mask(30, "a"), p.mask(30, "b")
    shown, image = np.asarray(axes.images[0].get_array()), axes.images[0]
    colors = {name: tuple(image.cmap(image.norm(shown[cells][0]))) for name, cells in
              {"A": a & ~b, "B": b & ~a, "both": a & b, "none": ~(a | b)}.items()}  # fmt: skip
    assert len(set(colors.values())) == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A only", "B only", "A and B"]
    lightness = sorted(0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 for r, g, b, _ in colors.values())
    assert all(after > 1.8 * before for before, after in pairwise(lightness))  # told apart without hues, too


def test_cache_shows_what_is_held() -> None:
    axes = Figure().subplots()
    p = rv.pattern("exponential+cache")
    panels.cache(axes, p, 50)
    assert np.array_equal(axes.images[0].get_array(), p.mask(50))  # cache-efficient: held means read


def test_growth_curves() -> None:
    axes = Figure().subplots()
    panels.growth(axes, {"reads": (rv.exponential(), "reads"), "slots": (rv.exponential(), "slots")})
    reads, slots = (line.get_ydata() for line in axes.lines)
    assert reads[-1] == 16
    assert slots[-1] == 65_535


def test_trade_off_names_what_has_no_path() -> None:
    axes = Figure().subplots()
    trade_off(axes, [rv.analyze(spec, 64) for spec in ("local:8", "dense", "attention")])
    assert "no path at all: local:8" in axes.get_title()
    assert [text.get_text() for text in axes.texts] == ["dense\nattention"]
