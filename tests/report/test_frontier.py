"""The frontier of cache, hops and congestion: points are measured, none is beyond the bounds, and names can be read."""

import itertools
import math
from pathlib import Path

import pytest
from matplotlib.text import Annotation

import resolvent as rv
from resolvent.analysis.frontier import fewest_hops, least_cache, least_congestion
from resolvent.report import frontier
from resolvent.report.figures import save


@pytest.mark.parametrize("n", [8, 100])
def test_no_pattern_is_beyond_the_frontier(n: int) -> None:
    points = frontier.pattern_points(rv.PAPER_STRUCTURES, n)
    assert [point.name for point in points] == list(rv.PAPER_STRUCTURES)
    for point in points:
        assert point.hops >= fewest_hops(point.cache, 2 * n)
        assert point.congestion >= least_congestion(point.cache, n)
        if not math.isinf(point.hops):
            assert point.cache >= least_cache(int(point.hops), int(point.congestion), n)


def test_corners_need_their_cache() -> None:
    corners = frontier.frontier_points(256)
    assert [point.cache for point in corners] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 511]
    assert [point.hops for point in corners] == [511, 31, 9, 5, 3, 2, 2, 2, 2, 1]
    for point in corners:
        assert least_cache(int(point.hops), int(point.congestion), 256) == point.cache


@pytest.mark.parametrize("n", [64, 256])
def test_names_cover_neither_each_other_nor_the_edge(n: int, tmp_path: Path) -> None:
    figure = frontier.frontier_figure(n)
    assert "no path at all: local:8" in figure.get_suptitle()
    figure.draw_without_rendering()
    for axes in figure.axes:
        names = [text for text in axes.texts if isinstance(text, Annotation) and text.get_zorder() == 5]
        assert len(names) >= 6
        boxes = [name.get_window_extent() for name in names]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        area = axes.get_window_extent()
        assert all(area.x0 <= box.x0 and box.x1 <= area.x1 for box in boxes)
    assert save(figure, tmp_path / "frontier.png").stat().st_size > 10_000
