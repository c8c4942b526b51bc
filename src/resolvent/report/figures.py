"""Pictures of patterns: who reads whom, what is held, how far, how crowded, how it grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from resolvent.analysis import Congestion, Profile, hop_matrix
from resolvent.analysis.congestion import occupancy
from resolvent.analysis.growth import most_reads
from resolvent.patterns import Pattern, PatternError

if TYPE_CHECKING:
    import numpy.typing as npt

_INK, _A, _B, _BOTH = "#1b1f24", "#7fa7d9", "#d9905b", "#3d5a80"
_LARGEST_PICTURE = 2048
_FORMATS = (".png", ".pdf", ".svg")
_PARTS = {"forward": "forward", "both": "forward and backward"}


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure, in the format that its name ends in; its folder is made if need be."""
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"expected a file name that ends in {', '.join(_FORMATS)}, got '{path}'.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    return path


def profile_figure(profile: Profile) -> Figure:
    """One page per pattern: mask, cache over time, hops, load of a routing, growth."""
    p, n = profile.pattern, min(profile.n, 128)
    figure = Figure(figsize=(13, 8), layout="constrained")
    figure.suptitle(str(p), fontsize=15, color=_INK, weight="bold")
    grid = figure.add_gridspec(2, 3)
    mask(figure.add_subplot(grid[0, 0]), p, min(n, 64))
    cache(figure.add_subplot(grid[0, 1]), p, n)
    hops(figure.add_subplot(grid[0, 2]), p, n)
    load(figure.add_subplot(grid[1, :2]), profile.congestion, profile.n)
    both = figure.add_subplot(grid[1, 2])
    growth(both, {"reads per token": (p, "reads"), "cache slots": (p, "slots")})
    both.set_title("growth of cost and cache", fontsize=11, color=_INK)
    return figure


def mask_figure(p: Pattern, n: int) -> Figure:
    """The mask of A and B alone."""
    if n > _LARGEST_PICTURE:
        raise PatternError(f"expected n ≤ {_LARGEST_PICTURE:,} for a picture of the mask, got {n:,}.")
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


def speed_figure(report: Mapping[str, Any]) -> Figure:
    """A bench report: times against n where there are several lengths, speedups where there is one."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    shape = f"batch {report['batch']}, {report['heads']} heads of {report['head_dim']}, {report['threads']} threads"
    several = len(report["lengths"]) > 1
    at = "" if several else f"n = {report['lengths'][0]['n']:,}, "
    figure.suptitle(f"{at}{shape}", fontsize=13, color=_INK, weight="bold")
    draw: Callable[[Axes, Mapping[str, Any], Literal["forward", "both"]], None] = times if several else speedups
    panels = figure.subplots(1, 2, sharey=True)
    draw(panels[0], report, "forward")
    draw(panels[1], report, "both")
    if several:
        panels[1].set_ylabel("")
        named = panels[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside right center", frameon=False, fontsize=9, handlelength=3.5)
    return figure


def times(axes: Axes, report: Mapping[str, Any], part: Literal["forward", "both"]) -> None:
    """Milliseconds against n, a line per case with the range of its rounds; patterns in full, peers dashed."""
    found = [(length["n"], timing) for length in report["lengths"] for timing in length["timings"]]
    cases = dict.fromkeys(timing["case"] for _, timing in found)
    colours = matplotlib.colormaps["tab10" if len(cases) <= 10 else "tab20"]
    for index, case in enumerate(cases):
        here = [(n, timing) for n, timing in found if timing["case"] == case and timing[part]]
        if here:
            middle = np.array([timing[part]["ms"] for _, timing in here])
            ranges = np.array([timing[part]["range_ms"] for _, timing in here])
            axes.errorbar(
                [n for n, _ in here],
                middle,
                np.abs(ranges - middle[:, None]).T,
                color=colours(index),
                linestyle="--" if here[0][1]["peer"] else "-",
                marker="o",
                markersize=4,
                linewidth=1.8,
                elinewidth=0.9,
                capsize=2.5,
                label=case,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = [length["n"] for length in report["lengths"]]
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    _label(axes, _PARTS[part], "tokens n", "milliseconds (median, range)")


def speedups(axes: Axes, report: Mapping[str, Any], part: Literal["forward", "both"]) -> None:
    """How many times as fast as the yardstick each case is, at one length."""
    timings = report["lengths"][0]["timings"]
    values = [(timing[part] or {}).get("speedup") for timing in timings]
    colours = [_A if timing["peer"] else _BOTH for timing in timings]
    bars = axes.barh([timing["case"] for timing in timings], [value or 0 for value in values], color=colours)
    words = ["not measured" if value is None else f"{value:.{1 if value >= 1 else 2}f}" for value in values]
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.bar_label(bars, words, padding=4, fontsize=9, color=_INK, bbox=behind)
    axes.axvline(1, color=_INK, linewidth=0.8, linestyle="--", zorder=0.5)
    axes.set_xlim(0, 1.15 * max([1.0, *(value for value in values if value)]))
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, _PARTS[part], f"times as fast as {report['yardstick']}", "")
    axes.tick_params(axis="y", labelsize=10)


def mask(axes: Axes, p: Pattern, n: int) -> None:
    """Non-zeros of A and B."""
    a, b = p.mask(n, "a"), p.mask(n, "b")
    axes.imshow(a + 2 * b, cmap=ListedColormap(["white", _A, _B, _BOTH]), vmin=0, vmax=3, interpolation="nearest")
    meanings = ((_A, "A only", a & ~b), (_B, "B only", b & ~a), (_BOTH, "A and B", a & b))
    for colour, meaning, cells in meanings:
        if cells.any():
            axes.scatter([], [], marker="s", color=colour, label=meaning)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    _label(axes, f"who reads whom ({n} tokens)", "position read", "token")


def cache(axes: Axes, p: Pattern, n: int) -> None:
    """Which positions are held while each token is decoded, with their number on top."""
    held = np.tril(np.subtract.outer(np.arange(n), np.arange(n)) <= p.lives(n)[None, :], -1)
    axes.imshow(held, cmap=ListedColormap(["white", _A]), vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    counts = axes.twiny()
    counts.step(occupancy(p, n), np.arange(n), where="mid", color=_INK, linewidth=1)
    counts.set_xlim(0, max(float(occupancy(p, n).max()) * 1.1, 1.0))
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
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="white")
    norm = BoundaryNorm(np.arange(-0.5, most + 1.5), colours.N) if most <= 12 else None
    image = axes.imshow(matrix, cmap=colours, norm=norm, interpolation="nearest")
    if unreachable.any():
        axes.imshow(np.where(unreachable, 1.0, np.nan), cmap=ListedColormap(["#dddddd"]), interpolation="nearest")
        axes.text(0.95, 0.9, "grey: no path", transform=axes.transAxes, ha="right", fontsize=9)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, label="hops")
    if most <= 12:
        bar.set_ticks(list(range(most + 1)))
    _label(axes, f"hops (at most {most} over {len(matrix)} tokens)", "from input", "to output")


def load(axes: Axes, bounds: Congestion, n: int) -> None:
    """Paths through each node when n tokens are copied n places on."""
    if bounds.routing is None:
        text = "some tokens have no path:\nno routing exists" if bounds.exact else "routing too long to write out"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        edges = np.unique(np.linspace(0, 2 * n, min(2 * n, 256) + 1).astype(int))
        loads, widths = bounds.routing.loads(), np.diff(edges)
        highest, total = np.maximum.reduceat(loads, edges[:-1]), np.add.reduceat(loads, edges[:-1])
        axes.bar(edges[:-1], highest, widths, align="edge", color=_B, label="busiest node nearby")
        axes.bar(edges[:-1], total / widths, widths, align="edge", color=_BOTH, label="average nearby")
        axes.axhline(float(bounds.lower), color=_INK, linestyle="--", linewidth=1, label=f"≥ {bounds.lower:,} (proved)")
        axes.axvline(n, color=_INK, linewidth=0.5)
        axes.set_ylim(0, float(bounds.upper) * 1.45 + 0.5)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    found = f", at most {bounds.upper:,} here" if bounds.routing else ""
    _label(axes, f"load when copying {n:,} tokens{found}", "node", "paths through it")


def growth(axes: Axes, curves: Mapping[str, tuple[Pattern, Literal["reads", "slots"]]]) -> None:
    """Reads per token, or cache slots, against n; one named curve each."""
    sizes, highest = np.unique(np.logspace(3, 16, 40, base=2).astype(int)).tolist(), 4
    for index, (name, (p, what)) in enumerate(curves.items()):
        values = [most_reads(p, n) if what == "reads" else p.slots(n) for n in sizes]
        highest = max(highest, *values)
        axes.plot(sizes, values, ["-", "--", ":", "-."][index % 4], linewidth=1.8, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", base=2, linthresh=1)  # down to 0, for patterns that read nothing
    axes.set_ylim(0, 2 * highest)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    _label(axes, "", "tokens n", "")


def trade_off(axes: Axes, profiles: Sequence[Profile]) -> None:
    """Cache against congestion, and the line below which nothing can lie: cache × congestion = n.

    The cache is counted where the law is proved, when token n + 1 is decoded: one slot more than n tokens need.
    """
    n = profiles[0].n
    line: npt.NDArray[np.float64] = np.logspace(0, np.log2(n), 50, base=2)
    axes.plot(line, n / line, color=_INK, linewidth=1, linestyle="--", label="cache × congestion = n")
    axes.fill_between(line, 0.6, n / line, color=_INK, alpha=0.06, linewidth=0)
    names: dict[tuple[float, float], list[str]] = {}
    for profile in profiles:
        if np.isfinite(profile.congestion.upper):
            point = (float(profile.pattern.slots(n + 1)), float(profile.congestion.upper))
            names.setdefault(point, []).append(str(profile.pattern))
    for point, here in names.items():
        axes.scatter(*point, s=46, color=_B, zorder=3)
        left = point[0] > n**0.7
        axes.annotate(
            "\n".join(here),
            point,
            xytext=(-9 if left else 7, 4),
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
    missing = [str(p.pattern) for p in profiles if not np.isfinite(p.congestion.upper)]
    note = f"\n(no path at all: {', '.join(missing)})" if missing else ""
    _label(axes, f"the price of a small cache, n = {n:,}{note}", "cache slots", "congestion")


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    if title:
        axes.set_title(title, fontsize=11, color=_INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
