"""Cache against congestion of several patterns, with labels that do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from resolvent.analysis.figures.labels import rings
from resolvent.analysis.figures.palette import INK, color_of_structure
from resolvent.analysis.figures.panels import label
from resolvent.analysis.profile import Profile

if TYPE_CHECKING:
    import numpy.typing as npt


def trade_off(axes: Axes, profiles: Sequence[Profile]) -> None:
    """Cache slots against congestion, and the lower bound slots × congestion = n - 1."""
    n = profiles[0].n
    line: npt.NDArray[np.float64] = np.logspace(0, np.log2(n), 50, base=2)
    axes.plot(line, (n - 1) / line, color=INK, linewidth=1, linestyle="--")
    axes.fill_between(line, 0.6, (n - 1) / line, color=INK, alpha=0.06, linewidth=0)
    names: dict[tuple[float, float], list[str]] = {}
    for profile in profiles:
        if profile.congestion is not None and np.isfinite(profile.congestion.upper):
            point = (float(profile.cache_slots), float(profile.congestion.upper))
            names.setdefault(point, []).append(str(profile.pattern))
    every = [str(profile.pattern) for profile in profiles]
    at = {(x, y): (340 * np.log2(x) / np.log2(2 * n), 300 * np.log2(y) / np.log2(4 * n)) for x, y in names}  # in points
    boxes = [(x - 5, y - 5, 10.0, 10.0) for x, y in at.values()]
    for point, labels in sorted(names.items()):
        rings(axes, point, [color_of_structure(name, every) for name in labels])
        size = 5.2 * max(map(len, labels)), 12.0 * len(labels)
        usual = point[0] > n**0.7  # to the left, where the right is not within the axes
        options = [(usual or left, up) for up in (4, -13, 19, -28, 34) for left in (False, True)]
        fits = [each for each in options if not _overlaps((*_corner(at[point], size, *each), *size), boxes)]
        left, up = [*fits, options[0]][0]
        boxes.append((*_corner(at[point], size, left, up), *size))
        axes.annotate(
            "\n".join(labels),
            point,
            xytext=(-9 if left else 7, up),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.6, 2.2 * n)
    law = "– –  slots × congestion = n - 1"
    axes.text(0.97, 0.97, law, transform=axes.transAxes, ha="right", va="top", fontsize=9, color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    missing = [str(p.pattern) for p in profiles if p.congestion and not np.isfinite(p.congestion.upper)]
    note = f"\n(no path at all: {', '.join(missing)})" if missing else ""
    label(axes, f"cache and congestion, n = {n:,}{note}", "cache slots", "congestion")


def _corner(at: tuple[float, float], size: tuple[float, float], left: bool, up: int) -> tuple[float, float]:
    """The lower left corner of a label beside a point."""
    return at[0] - 9 - size[0] if left else at[0] + 7, at[1] + up


def _overlaps(box: tuple[float, float, float, float], others: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether a box, given by left, bottom, width and height, covers part of another."""
    x, y, width, height = box
    return any(x < a + w and a < x + width and y < b + h and b < y + height for a, b, w, h in others)
