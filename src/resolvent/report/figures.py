"""Figures of patterns (mask, cache, hops, load, growth) and of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from resolvent.analysis import Congestion, Profile, hop_matrix
from resolvent.bench.record import PASSES
from resolvent.errors import PatternError
from resolvent.patterns import Pattern

if TYPE_CHECKING:
    import numpy.typing as npt

    from resolvent.bench.record import Pass
    from resolvent.bench.results import Report

_INK, _A, _B, _BOTH = "#1b1f24", "#7fa7d9", "#d9905b", "#3d5a80"
_MASK = {"A only": "#8fb8e8", "B only": "#d55e00", "A and B": "#22314d"}  # apart by lightness, too: for all eyes
_LARGEST_MASK_FIGURE = 2048
_FORMATS = (".png", ".pdf", ".svg")


def save(figure: Figure, path: str | Path, *, colors: int | None = None) -> Path:
    """Write a figure in the format of its suffix; missing folders are created.

    With `colors`, a PNG has at most so many: line drawings look the same, in a third of the bytes.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"expected a file name that ends in {', '.join(_FORMATS)}, got '{path}'.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    if colors is not None and path.suffix == ".png":
        from PIL import Image  # which matplotlib needs anyway

        with Image.open(path) as image:
            reduced = image.convert("RGB").quantize(colors)
        reduced.save(path, optimize=True)
    return path


def profile_figure(profile: Profile) -> Figure:
    """One page for a pattern: mask, cache over time, hops, load of a routing, growth."""
    p, n = profile.pattern, min(profile.n, 128)
    figure = Figure(figsize=(13, 8), layout="constrained")
    figure.suptitle(str(p), fontsize=15, color=_INK, weight="bold")
    grid = figure.add_gridspec(2, 3)
    mask(figure.add_subplot(grid[0, 0]), p, min(n, 64))
    cache(figure.add_subplot(grid[0, 1]), p, n)
    hops(figure.add_subplot(grid[0, 2]), p, n)
    load(figure.add_subplot(grid[1, :2]), profile.congestion, profile.n)
    growth_axes = figure.add_subplot(grid[1, 2])
    growth(growth_axes, {"reads per token": (p, "reads"), "cache slots": (p, "slots")})
    growth_axes.set_title("growth of cost and cache", fontsize=11, color=_INK)
    return figure


def mask_figure(p: Pattern, n: int) -> Figure:
    """A figure of the mask of A and B."""
    if n > _LARGEST_MASK_FIGURE:
        raise PatternError(f"expected n ≤ {_LARGEST_MASK_FIGURE:,} for a figure of the mask, got {n:,}.")
    figure = Figure(figsize=(6, 6.4), layout="constrained")
    figure.suptitle(str(p), fontsize=13, color=_INK, weight="bold")
    mask(figure.subplots(), p, n)
    return figure


def comparison_figure(profiles: Sequence[Profile]) -> Figure:
    """Several patterns side by side: growth of reads and cache, and the cache–congestion trade-off."""
    figure = Figure(figsize=(15, 5), layout="constrained")
    reads_axes, slots_axes, trade_axes = figure.subplots(1, 3)
    patterns = [profile.pattern for profile in profiles]
    growth(reads_axes, {str(p): (p, "reads") for p in patterns})
    growth(slots_axes, {str(p): (p, "slots") for p in patterns})
    reads_axes.set_title("growth of reads per token (time)", fontsize=11, color=_INK)
    slots_axes.set_title("growth of cache slots (memory)", fontsize=11, color=_INK)
    trade_off(trade_axes, profiles)
    return figure


def speed_figure(report: Report) -> Figure:
    """A benchmark: times against n for several lengths, speedups for one."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    shape = f"batch {report.batch}, {report.heads} heads of {report.head_dim}, {report.threads} threads"
    several = len(report.lengths) > 1
    length = "" if several else f"n = {report.lengths[0].n:,}, "
    figure.suptitle(f"{length}{shape}", fontsize=13, color=_INK, weight="bold")
    draw: Callable[[Axes, Report, Pass], None] = times if several else speedups
    panels = figure.subplots(1, 2, sharey=True)
    draw(panels[0], report, "forward")
    draw(panels[1], report, "both")
    if several:
        panels[1].set_ylabel("")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, handlelength=3.5)
    return figure


def times(axes: Axes, report: Report, which: Pass) -> None:
    """Milliseconds against n, one line per case with the range over rounds; patterns solid, peers dashed."""
    timings = [(length.n, timing) for length in report.lengths for timing in length.timings]
    cases = dict.fromkeys(timing.case for _, timing in timings)
    colors = matplotlib.colormaps["tab10" if len(cases) <= 10 else "tab20"]
    for index, case in enumerate(cases):
        of_case = [(n, timing) for n, timing in timings if timing.case == case]
        measured = [(n, passed) for n, timing in of_case if (passed := timing.of(which)) is not None]
        if measured:
            medians = np.array([passed.ms for _, passed in measured])
            ranges = np.array([passed.range_ms for _, passed in measured])
            axes.errorbar(
                [n for n, _ in measured],
                medians,
                np.abs(ranges - medians[:, None]).T,
                color=colors(index),
                linestyle="--" if of_case[0][1].peer else "-",
                marker="o",
                markersize=4,
                linewidth=1.8,
                elinewidth=0.9,
                capsize=2.5,
                label=case,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = [length.n for length in report.lengths]
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    _label(axes, PASSES[which], "tokens n", "milliseconds (median, range)")


def speedups(axes: Axes, report: Report, which: Pass) -> None:
    """The speedup of each case over the yardstick, at one length."""
    timings = report.lengths[0].timings
    passes = [timing.of(which) for timing in timings]
    values = [None if passed is None else passed.speedup for passed in passes]
    colors = [_A if timing.peer else _BOTH for timing in timings]
    bars = axes.barh([timing.case for timing in timings], [value or 0 for value in values], color=colors)
    labels = ["not measured" if value is None else f"{value:.{1 if value >= 1 else 2}f}" for value in values]
    background = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.bar_label(bars, labels, padding=4, fontsize=9, color=_INK, bbox=background)
    axes.axvline(1, color=_INK, linewidth=0.8, linestyle="--", zorder=0.5)
    axes.set_xlim(0, 1.15 * max([1.0, *(value for value in values if value)]))
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, PASSES[which], f"speedup over {report.yardstick}", "")
    axes.tick_params(axis="y", labelsize=10)


def mask(axes: Axes, p: Pattern, n: int) -> None:
    """The non-zeros of A and B, each in its color, and of both in a third."""
    a, b = p.mask(n, "a"), p.mask(n, "b")
    axes.imshow(a + 2 * b, cmap=ListedColormap(["white", *_MASK.values()]), vmin=0, vmax=3, interpolation="nearest")
    for (meaning, color), cells in zip(_MASK.items(), (a & ~b, b & ~a, a & b), strict=True):
        if cells.any():
            axes.scatter([], [], marker="s", color=color, label=meaning)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    _label(axes, f"positions read ({n} tokens)", "position read", "token")


def cache(axes: Axes, p: Pattern, n: int) -> None:
    """The positions held while each token is decoded, and their number on the top axis."""
    held = np.tril(np.subtract.outer(np.arange(n), np.arange(n)) <= p.lives(n)[None, :], -1)
    axes.imshow(held, cmap=ListedColormap(["white", _A]), vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    counts = axes.twiny()
    counts.step(p.occupancy(n), np.arange(n), where="mid", color=_INK, linewidth=1)
    counts.set_xlim(0, max(float(p.occupancy(n).max()) * 1.1, 1.0))
    counts.tick_params(labelsize=8)
    counts.set_xlabel("positions held (line)", fontsize=9)
    _label(axes, "", "position held (blue)", "token being decoded")


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
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, label="hops")
    if most <= 12:
        bar.set_ticks(list(range(most + 1)))
    _label(axes, f"hops (at most {most} over {len(matrix)} tokens)", "from input", "to output")


def load(axes: Axes, bounds: Congestion | None, n: int) -> None:
    """The number of paths through each node when n tokens are copied by n positions."""
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
        axes.bar(edges[:-1], highest, widths, align="edge", color=_B, label="maximum nearby")
        axes.bar(edges[:-1], total / widths, widths, align="edge", color=_BOTH, label="mean nearby")
        axes.axhline(float(bounds.lower), color=_INK, linestyle="--", linewidth=1, label=f"≥ {bounds.lower:,} (proven)")
        axes.axvline(n, color=_INK, linewidth=0.5)
        axes.set_ylim(0, float(bounds.upper) * 1.45 + 0.5)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    maximum = f", at most {bounds.upper:,}" if bounds is not None and bounds.routing else ""
    _label(axes, f"load when copying {n:,} tokens{maximum}", "node", "paths through it")


def growth(axes: Axes, curves: Mapping[str, tuple[Pattern, Literal["reads", "slots"]]]) -> None:
    """Reads per token, or cache slots, against n: one labeled curve each."""
    sizes, highest = np.unique(np.logspace(3, 16, 40, base=2).astype(int)).tolist(), 4
    for index, (name, (p, quantity)) in enumerate(curves.items()):
        own = [n for n in sizes if p.limit is None or n <= p.limit]
        values = [p.widest_row(n) if quantity == "reads" else p.slots(n) for n in own]
        highest = max(highest, *values)
        axes.plot(own, values, ["-", "--", ":", "-."][index % 4], linewidth=1.8, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", base=2, linthresh=1)  # down to 0, for patterns that read nothing
    axes.set_ylim(0, 2 * highest)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    _label(axes, "", "tokens n", "")


def trade_off(axes: Axes, profiles: Sequence[Profile]) -> None:
    """Cache against congestion, and the lower bound cache × congestion = n.

    The cache is counted where the bound is proven, when token n + 1 is decoded: one slot more than n tokens need.
    """
    n = profiles[0].n
    line: npt.NDArray[np.float64] = np.logspace(0, np.log2(n), 50, base=2)
    axes.plot(line, n / line, color=_INK, linewidth=1, linestyle="--", label="cache × congestion = n")
    axes.fill_between(line, 0.6, n / line, color=_INK, alpha=0.06, linewidth=0)
    names: dict[tuple[float, float], list[str]] = {}
    for profile in profiles:
        if profile.congestion is not None and np.isfinite(profile.congestion.upper):
            point = (float(profile.pattern.slots(n + 1)), float(profile.congestion.upper))
            names.setdefault(point, []).append(str(profile.pattern))
    at = {(x, y): (340 * np.log2(x) / np.log2(2 * n), 300 * np.log2(y) / np.log2(4 * n)) for x, y in names}  # in points
    boxes = [(x - 5, y - 5, 10.0, 10.0) for x, y in at.values()]
    for point, labels in sorted(names.items()):
        axes.scatter(*point, s=46, color=_B, zorder=3)
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
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.grid(alpha=0.25)
    missing = [str(p.pattern) for p in profiles if p.congestion and not np.isfinite(p.congestion.upper)]
    note = f"\n(no path at all: {', '.join(missing)})" if missing else ""
    _label(axes, f"the price of a small cache, n = {n:,}{note}", "cache slots", "congestion")


def _corner(at: tuple[float, float], size: tuple[float, float], left: bool, up: int) -> tuple[float, float]:
    """The lower left corner of a label beside a point."""
    return at[0] - 9 - size[0] if left else at[0] + 7, at[1] + up


def _overlaps(box: tuple[float, float, float, float], others: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether a box, given by left, bottom, width and height, covers part of another."""
    x, y, width, height = box
    return any(x < a + w and a < x + width and y < b + h and b < y + height for a, b, w, h in others)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    if title:
        axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
