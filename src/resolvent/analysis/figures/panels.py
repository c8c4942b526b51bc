"""Figures of patterns: panels of the mask, the cache, hops, load and growth, and pages of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from resolvent.analysis.congestion import Congestion
from resolvent.analysis.figures.labels import end_labels, rings, shared_dashes
from resolvent.analysis.figures.palette import (
    A_AND_B,
    A_ONLY,
    B_ONLY,
    INK,
    NAVY,
    ORANGE,
    PALE,
    color_of_structure,
    in_order,
)
from resolvent.analysis.hops import hop_matrix
from resolvent.analysis.profile import Profile
from resolvent.errors import PatternError
from resolvent.patterns import Pattern, Stage

_LARGEST_MASK_FIGURE = 2048
_MASK = {"A only": A_ONLY, "B only": B_ONLY, "A and B": A_AND_B}


def mask(axes: Axes, p: Pattern, n: int) -> None:
    """The non-zeros of A and B, each in its color, and of both in a third."""
    a, b = p.mask(n, "a"), p.mask(n, "b")
    axes.imshow(a + 2 * b, cmap=ListedColormap(["white", *_MASK.values()]), vmin=0, vmax=3, interpolation="nearest")
    for (meaning, color), cells in zip(_MASK.items(), (a & ~b, b & ~a, a & b), strict=True):
        if cells.any():
            axes.scatter([], [], marker="s", color=color, label=meaning)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    label(axes, f"positions read ({n} tokens)", "position read", "token")


def cache(axes: Axes, p: Pattern, n: int) -> None:
    """What each slot holds while each token is decoded; of a pair, A's slots above B's."""
    slots = np.concatenate([slots_over_time(stage, n) for stage in p.stages])
    colors = matplotlib.colormaps["viridis"].with_extremes(bad="#f1f3f5")
    image = axes.imshow(slots, cmap=colors, vmin=0, vmax=max(n - 1, 1), interpolation="nearest", aspect="auto")
    _scale(axes, image, "position held")
    axes.locator_params(axis="y", integer=True)
    held = f"{len(slots)} slot" + ("" if len(slots) == 1 else "s")
    label(axes, f"the cache ({held} for {n} tokens)", "token being decoded", "slot")


def slots_over_time(stage: Stage, n: int) -> npt.NDArray[np.float64]:
    """The position in each slot when each token is decoded, shape (slots, n); NaN where it is free."""
    positions = np.arange(n)
    slot, last = stage.slots_of(positions), stage.last_readers(positions)
    held = np.full((max(stage.slots(n), 1), n), np.nan)
    for j in range(n - 1):
        if slot[j] >= 0:
            held[slot[j], j + 1 : last[j] + 1] = j
    return held


def hops(axes: Axes, p: Pattern, n: int) -> None:
    """Hops from every input to every output."""
    matrix = hop_matrix(p, n).astype(float)
    matrix[np.triu_indices(len(matrix), 1)] = np.nan
    unreachable = matrix == -1
    matrix[unreachable] = np.nan
    most = int(np.nanmax(matrix))
    colors = matplotlib.colormaps["viridis"].with_extremes(bad="white")
    norm = BoundaryNorm(np.arange(-0.5, most + 1.5), colors.N) if most <= 12 else None
    image = axes.imshow(matrix, cmap=colors, norm=norm, interpolation="nearest")
    if unreachable.any():
        axes.imshow(np.where(unreachable, 1.0, np.nan), cmap=ListedColormap(["#dddddd"]), interpolation="nearest")
        axes.text(0.95, 0.9, "gray: no path", transform=axes.transAxes, ha="right", fontsize=9)
    bar = _scale(axes, image, "hops")
    if most <= 12:
        bar.set_ticks(list(range(most + 1)))
    label(axes, f"hops (at most {most} over {len(matrix)} tokens)", "from input", "to output")


def _scale(axes: Axes, image: AxesImage, meaning: str) -> Colorbar:
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.03, 0.1, 0.04, 0.8)))
    bar.set_label(meaning, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return bar


def load(axes: Axes, bounds: Congestion | None, n: int) -> None:
    """The number of paths through each node when n tokens are copied to the next n positions."""
    if bounds is None or bounds.routing is None:
        text = "some tokens have no path:\nno routing exists"
        if bounds is None:
            text = f"the table has fewer than {2 * n:,} positions"
        elif not bounds.exact:
            text = "routing too long to list"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        edges = np.unique(np.linspace(0, 2 * n, min(2 * n, 256) + 1).astype(int))
        loads, widths = bounds.routing.loads(), np.diff(edges)
        highest, total = np.maximum.reduceat(loads, edges[:-1]), np.add.reduceat(loads, edges[:-1])
        axes.bar(edges[:-1], highest, widths, align="edge", color=ORANGE, label="maximum nearby")
        axes.bar(edges[:-1], total / widths, widths, align="edge", color=NAVY, label="mean nearby")
        axes.axhline(float(bounds.lower), color=INK, linestyle="--", linewidth=1, label=f"≥ {bounds.lower:,} (proven)")
        axes.axvline(n, color=INK, linewidth=0.5)
        axes.set_ylim(0, float(bounds.upper) * 1.45 + 0.5)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    maximum = f", at most {bounds.upper:,}" if bounds is not None and bounds.routing else ""
    label(axes, f"load when copying {n:,} tokens{maximum}", "node", "paths through it")


def growth(axes: Axes, curves: Mapping[str, tuple[Pattern, Literal["reads", "slots"]]]) -> None:
    """Reads per token, or cache slots, against n: a curve each, named at its end; coinciding ones share a line."""
    sizes = np.unique(np.logspace(3, 16, 40, base=2).astype(int)).tolist()
    lengths = {name: [n for n in sizes if p.limit is None or n <= p.limit] for name, (p, _) in curves.items()}
    values = {
        name: [p.widest_row(n) if quantity == "reads" else p.slots(n) for n in lengths[name]]
        for name, (p, quantity) in curves.items()
    }
    dashes, ends = shared_dashes(values), []
    for name, heights in values.items():
        color = color_of_structure(name, curves)
        usual = (0, (4, 1.5)) if "+cache" in name else "-"
        axes.plot(lengths[name], heights, linestyle=dashes.get(name, usual), color=color, linewidth=1.8, label=name)
        ends += [(lengths[name][-1], heights[-1], name, color)] if heights else []
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", base=2, linthresh=1)  # down to 0, for patterns that read nothing
    axes.set_ylim(0, 2 * max([4, *(height for each in values.values() for height in each)]))
    axes.set_xlim(sizes[0], sizes[-1])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    label(axes, "", "tokens n", "")
    end_labels(axes, ends)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """A title, and the names of both axes, in the sizes of all figures."""
    if title:
        axes.set_title(title, fontsize=11, color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)


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
    return at[0] - 9 - size[0] if left else at[0] + 7, at[1] + up


def _overlaps(box: tuple[float, float, float, float], others: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether a box, given by left, bottom, width and height, covers part of another."""
    x, y, width, height = box
    return any(x < a + w and a < x + width and y < b + h and b < y + height for a, b, w, h in others)


def profile_figure(profile: Profile) -> Figure:
    """One page for a pattern: mask, cache over time, hops, load of a routing, growth."""
    p, n = profile.pattern, min(profile.n, 128)
    figure = Figure(figsize=(13, 8), layout="constrained")
    figure.suptitle(str(p), fontsize=15, color=INK, weight="bold")
    grid = figure.add_gridspec(2, 3)
    mask(figure.add_subplot(grid[0, 0]), p, min(n, 64))
    cache(figure.add_subplot(grid[0, 1]), p, n)
    hops(figure.add_subplot(grid[0, 2]), p, n)
    load(figure.add_subplot(grid[1, :2]), profile.congestion, profile.n)
    growth_axes = figure.add_subplot(grid[1, 2])
    growth(growth_axes, {"reads per token": (p, "reads"), "cache slots": (p, "slots")})
    growth_axes.set_title("growth of cost and cache", fontsize=11, color=INK)
    return figure


def comparison_figure(profiles: Sequence[Profile]) -> Figure:
    """Several patterns side by side: growth of reads and cache, and the cache–congestion trade-off."""
    names = in_order(str(profile.pattern) for profile in profiles)
    patterns = [next(p.pattern for p in profiles if str(p.pattern) == name) for name in names]
    figure = Figure(figsize=(16, 5.4), layout="constrained")
    reads_axes, slots_axes, trade_axes = figure.subplots(1, 3)
    growth(reads_axes, {str(p): (p, "reads") for p in patterns})
    growth(slots_axes, {str(p): (p, "slots") for p in patterns})
    reads_axes.set_title("growth of reads per token (time)", fontsize=11, color=INK)
    slots_axes.set_title("growth of cache slots (memory)", fontsize=11, color=INK)
    trade_off(trade_axes, profiles)
    figure.supxlabel(
        "Low is cheap. Lines in several colors are structures that coincide; dashed ones are cache-efficient. "
        "No pattern lies in the gray.",
        fontsize=9.5,
        color=PALE,
    )
    return figure


def mask_figure(p: Pattern, n: int) -> Figure:
    """A figure of the mask of A and B."""
    if n > _LARGEST_MASK_FIGURE:
        raise PatternError(f"expected n ≤ {_LARGEST_MASK_FIGURE:,} for a figure of the mask, got {n:,}.")
    figure = Figure(figsize=(6, 6.4), layout="constrained")
    figure.suptitle(str(p), fontsize=13, color=INK, weight="bold")
    mask(figure.subplots(), p, n)
    return figure
