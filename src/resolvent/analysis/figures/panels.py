"""What can be drawn of a pattern into one pair of axes: mask, cache, hops, load and growth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap

from resolvent.analysis.congestion import Congestion
from resolvent.analysis.hops import hop_matrix
from resolvent.patterns import Pattern

INK, BLUE, ORANGE, NAVY = "#1b1f24", "#7fa7d9", "#d9905b", "#3d5a80"
_MASK = {"A only": "#8fb8e8", "B only": "#d55e00", "A and B": "#22314d"}  # apart by lightness, too: for all eyes


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
    """The positions held while each token is decoded, and their number on the top axis."""
    held = np.tril(np.subtract.outer(np.arange(n), np.arange(n)) <= p.lives(n)[None, :], -1)
    axes.imshow(held, cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    counts = axes.twiny()
    counts.step(p.occupancy(n), np.arange(n), where="mid", color=INK, linewidth=1)
    counts.set_xlim(0, max(float(p.occupancy(n).max()) * 1.1, 1.0))
    counts.tick_params(labelsize=8)
    counts.set_xlabel("positions held (line)", fontsize=9)
    label(axes, "", "position held (blue)", "token being decoded")


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
    label(axes, f"hops (at most {most} over {len(matrix)} tokens)", "from input", "to output")


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
        axes.bar(edges[:-1], highest, widths, align="edge", color=ORANGE, label="maximum nearby")
        axes.bar(edges[:-1], total / widths, widths, align="edge", color=NAVY, label="mean nearby")
        axes.axhline(float(bounds.lower), color=INK, linestyle="--", linewidth=1, label=f"≥ {bounds.lower:,} (proven)")
        axes.axvline(n, color=INK, linewidth=0.5)
        axes.set_ylim(0, float(bounds.upper) * 1.45 + 0.5)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    maximum = f", at most {bounds.upper:,}" if bounds is not None and bounds.routing else ""
    label(axes, f"load when copying {n:,} tokens{maximum}", "node", "paths through it")


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
    label(axes, "", "tokens n", "")


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """A title, and the names of both axes, in the sizes of all figures."""
    if title:
        axes.set_title(title, fontsize=11, color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
