"""Figure 2 of the paper, drawn anew: where A and B of each structure have entries, and what that costs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from resolvent.analysis import growth
from resolvent.analysis.figures.palette import A_ONLY, B_ONLY, EMPTY, INK, PALE, RULE
from resolvent.patterns import PAPER_STRUCTURES, Pattern, pattern
from resolvent.patterns.pattern import Part

COLORS: dict[Part, str] = {"a": A_ONLY, "b": B_ONLY}  # what a token takes from inputs, and from outputs
STRUCTURES = tuple(PAPER_STRUCTURES[row : row + 3] for row in (0, 3, 6))  # rows of the figure
_LENGTH = 1024  # of the sequence whose costs are given


def sparsity_figure(n: int = 32) -> Figure:
    """A and B of the paper's nine structures on n tokens, with reads per token, cache slots and their growth."""
    figure = Figure(figsize=(13, 8.6))
    figure.text(0.5, 0.975, f"who reads whom: A and B on {n} tokens", ha="center", va="center", fontsize=15,
                color=INK, weight="bold")  # fmt: skip
    figure.text(0.5, 0.945, f"reads per token and cache slots at n = {_LENGTH:,}, and how they grow",
                ha="center", va="center", fontsize=10.5, color=PALE)  # fmt: skip
    for row, names in enumerate(STRUCTURES):
        for column, name in enumerate(names):
            _pair(figure, pattern(name), n, 0.03 + 0.325 * column, 0.66 - 0.302 * row)
    return figure


def _pair(figure: Figure, p: Pattern, n: int, left: float, bottom: float) -> None:
    """A and B beside each other, the structure's name above them and its cost below."""
    width, height, gap = 0.14, 0.14 * 13 / 8.6, 0.012
    middle = left + width + gap / 2
    for number, part in enumerate(COLORS):
        entries(figure.add_axes((left + number * (width + gap), bottom, width, height)), p, n, part)
    law = growth(p)
    figure.text(middle, bottom + height + 0.012, str(p), ha="center", va="bottom", fontsize=11.5, color=INK,
                weight="bold")  # fmt: skip
    reads, slots = p.widest_row(_LENGTH), p.slots(_LENGTH)
    cost = f"reads {reads:,}, {law.reads_per_token}  ·  cache {slots:,}, {law.cache_slots}"
    figure.text(middle, bottom - 0.012, cost, ha="center", va="top", fontsize=10, color=INK)


def entries(axes: Axes, p: Pattern, n: int, part: Part, *, named: bool = True) -> None:
    """The entries of A or B, in its color, in the triangle that causality allows."""
    mask = p.mask(n, part)
    shown = np.where(mask, 2, np.tri(n, dtype=np.int64))
    axes.imshow(shown, cmap=ListedColormap(["white", EMPTY, COLORS[part]]), vmin=0, vmax=2, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(RULE)
    if not named:
        return
    name = part.upper() if mask.any() else f"{part.upper()} = 0"
    axes.text(0.95, 0.95, name, transform=axes.transAxes, ha="right", va="top", fontsize=11, color=COLORS[part],
              weight="bold")  # fmt: skip
