"""The frontier of cache, hops and congestion, with patterns on it: what any pattern needs, and what these have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from resolvent.analysis import congestion, hops
from resolvent.analysis.figures.labels import rings
from resolvent.analysis.figures.palette import INK as _INK
from resolvent.analysis.figures.palette import NAVY as _CORNER
from resolvent.analysis.figures.palette import color_of_structure
from resolvent.analysis.frontier import fewest_hops
from resolvent.patterns import PAPER_STRUCTURES, PatternLike, as_pattern

_BOUND = "bound"  # marks the lines that names should not cover


@dataclass(frozen=True)
class Point:
    """A pattern when n tokens are copied: cache and hops are those of all 2n tokens. Infinite if there is no path."""

    name: str
    cache: int
    hops: int | float
    congestion: int | float


def pattern_points(patterns: Sequence[PatternLike], n: int) -> list[Point]:
    """Measure patterns: cache slots and hops exactly, congestion by the best routing found."""
    points = []
    for each in patterns:
        pattern = as_pattern(each)
        distances = hops(pattern, 2 * n)
        points.append(
            Point(
                str(pattern),
                pattern.slots(2 * n),
                math.inf if distances.unreachable_pairs else distances.max,
                congestion(pattern, n).upper,
            )
        )
    return points


def frontier_points(n: int) -> list[Point]:
    """The corners of the frontier, one for each cache: the fewest hops and the least congestion.

    The lazy binomial pattern of this size has these hops, and this congestion or one more.
    """
    sizes = [2**t for t in range((2 * n - 1).bit_length()) if 2**t <= n] + [2 * n - 1]
    return [Point(f"{s}", s, fewest_hops(s, 2 * n), -(-n // s)) for s in sizes]


def frontier_figure(n: int = 1024, patterns: Sequence[PatternLike] = PAPER_STRUCTURES) -> Figure:
    """Hops against cache, congestion against cache, and the cache that hops and congestion need together.

    Args:
        n: Number of tokens to copy.
        patterns: Patterns to draw; those without a path are named below the title.
    """
    points = pattern_points(patterns, n)
    figure = Figure(figsize=(15, 5.4), layout="constrained")
    missing = [point.name for point in points if math.isinf(point.hops)]
    note = f"; no path at all: {', '.join(missing)}" if missing else ""
    figure.suptitle(f"copying n = {n:,} tokens: what any pattern needs{note}", fontsize=12, color=_INK, weight="bold")
    points = [point for point in points if not math.isinf(point.hops)]
    panels = figure.subplots(1, 3)
    hop_panel(panels[0], n)
    congestion_panel(panels[1], n)
    cache_panel(panels[2], n)
    figure.draw_without_rendering()  # names are placed where they have room, so the panels must have their sizes
    _draw(panels[0], [(point.cache, point.hops, point.name) for point in points])
    _draw(panels[1], [(point.cache, point.congestion, point.name) for point in points])
    _draw(panels[2], [(point.hops, point.congestion, f"{point.name}, s = {point.cache:,}") for point in points])
    return figure


def hop_panel(axes: Axes, n: int) -> None:
    """Hops over 2n tokens against the cache; below the line there is no pattern."""
    sizes = _sizes(n)
    _bound(axes, sizes, [fewest_hops(s, 2 * n) for s in sizes])
    _note(axes, "binomial:s, lazy is on the line\nbelow: no pattern, since C(s + h, s) ≥ 2n")
    _label(axes, "cache and hops", "cache slots s", f"most hops over {2 * n:,} tokens")


def congestion_panel(axes: Axes, n: int) -> None:
    """Congestion against the cache; below the line there is no pattern."""
    sizes = _sizes(n)
    _bound(axes, sizes, [-(-n // s) for s in sizes])
    _note(axes, "binomial:s, lazy is on the line or one above\nbelow: no pattern, as n tokens cross the middle")
    _label(axes, "cache and congestion", "cache slots s", "congestion")


def cache_panel(axes: Axes, n: int) -> None:
    """The surface, seen from above: what a cache of s allows is right of and above its corner, the binomial pattern."""
    corners = frontier_points(n)
    right, top = 4.0 * n, 2.0 * n
    for point in corners:
        axes.fill_between([point.hops, right], point.congestion, top, color=_CORNER, alpha=0.05, linewidth=0)
        axes.plot(
            [point.hops, point.hops, right], [top, point.congestion, point.congestion], color=_CORNER, linewidth=0.5
        )
        if point.cache > n:
            continue  # its line is that of the corner before
        axes.annotate(
            f"s = {point.cache:,}", (1.01, point.congestion), xycoords=("axes fraction", "data"),
            va="center", fontsize=8, color=_CORNER,
        )  # fmt: skip
    axes.plot(
        [point.hops for point in corners], [point.congestion for point in corners], color=_CORNER, marker="s",
        markersize=4, linewidth=0, gid=_BOUND,
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(0.7, right)
    axes.set_ylim(0.4, 2 * top)
    axes.annotate("■ binomial:s, lazy: fewest hops and least congestion at once", (0.02, 0.985), va="top",
                  xycoords="axes fraction", fontsize=8, color=_CORNER)  # fmt: skip
    _label(axes, "the cache s that hops and congestion need", f"most hops over {2 * n:,} tokens", "congestion")


def _sizes(n: int) -> list[int]:
    sizes: list[int] = np.unique(np.round(np.logspace(0, np.log10(2 * n - 1), 200)).astype(int)).tolist()
    return sizes


def _bound(axes: Axes, sizes: Sequence[int], values: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot(sizes, values, color=_CORNER, linewidth=1.6, gid=_BOUND)
    axes.fill_between(sizes, 0.2, values, color=_INK, alpha=0.07, linewidth=0)
    axes.set_ylim(0.2, 3.2 * max(values))
    axes.set_xlim(0.8, 1.6 * max(sizes))
    axes.grid(alpha=0.25)


def _note(axes: Axes, text: str) -> None:
    """What the line is, in the corner where no pattern is."""
    axes.annotate(text, (0.03, 0.02), xycoords="axes fraction", fontsize=8, color=_CORNER)


def _draw(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Points with their names, each beside its point where it covers the fewest points, lines and other names."""
    names: dict[tuple[float, float], list[str]] = {}
    for x, y, name in points:
        names.setdefault((x, y), []).append(name)
    every = [name.partition(", ")[0] for _, _, name in points]
    for point, labels in names.items():
        rings(axes, point, [color_of_structure(name.partition(", ")[0], every) for name in labels])
    places = [(7, 4, "left", "bottom"), (-7, 4, "right", "bottom"), (7, -4, "left", "top"), (-7, -4, "right", "top"),
              (0, 8, "center", "bottom"), (0, -8, "center", "top")]  # fmt: skip
    lines = _boxes(
        axes,
        [each for line in axes.lines if line.get_gid() == _BOUND for each in np.asarray(line.get_xydata()).tolist()],
    )
    taken = _boxes(axes, list(names))
    for index, (point, labels) in enumerate(names.items()):
        costs = []
        for dx, dy, ha, va in places:
            label = axes.annotate(
                "\n".join(labels), point, xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=8.5,
                color=_INK, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
            )  # fmt: skip
            label.set_in_layout(False)
            box = label.get_window_extent()
            covered = box.count_overlaps(taken[:index] + taken[index + 1 :])
            costs.append(((not _inside(axes, box), covered, box.count_overlaps(lines)), label, box))
        best = min(costs, key=lambda cost: cost[0])
        taken.append(best[2])
        for _, label, _ in costs:
            if label is not best[1]:
                label.remove()


def _boxes(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Bbox]:
    """Small squares on the page around points."""
    return [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in axes.transData.transform(points)]


def _inside(axes: Axes, box: Bbox) -> bool:
    area = axes.get_window_extent()
    return bool(area.x0 <= box.x0 and box.x1 <= area.x1 and area.y0 <= box.y0 and box.y1 <= area.y1)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
