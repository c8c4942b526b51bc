"""Figure 1 of the paper, drawn anew: y = (I - B)^-1 A x as a graph, and the layers that its sparsity makes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from docs.drawings.sparsity import COLORS, entries
from resolvent.analysis.figures.palette import EMPTY, INK, PALE, RULE
from resolvent.patterns import Pattern, pattern

# Title, spelling, and what is special about A and B.
EXAMPLES = (
    ("attention", "attention", "B = 0"),
    ("local attention", "local:3", "A banded, B = 0"),
    ("first order (SSM)", "first-order", "A diagonal, B one below"),
    ("k-th order", "order:2", "A and B banded"),
    ("dense", "dense", "every past position"),
    ("strided, 2$^k$", "exponential", "1, 2, 4, … back"),
)
_TOKENS = 5  # of the graph on top
_SHAPE = (13.0, 8.4)  # inches


def formulation_figure(n: int = 8) -> Figure:
    """The layer as a graph and as matrices; below, six sparsity patterns on n tokens and the layers that they are."""
    figure = Figure(figsize=_SHAPE)
    _heading(figure, 0.96, "a token mixer adds up past inputs (A) and past outputs (B)")
    graph(figure.add_axes((0.02, 0.535, 0.36, 0.39)), pattern("dense"), _TOKENS, named=True)
    _equation(figure.add_axes((0.4, 0.535, 0.585, 0.39)), _TOKENS)
    _heading(figure, 0.485, "the entries of A and B decide which layer it is")
    width, side = 0.142, 0.066
    for column, (title, spec, meaning) in enumerate(EXAMPLES):
        left, p = 0.022 + 0.1625 * column, pattern(spec)
        figure.text(left + width / 2, 0.437, title, ha="center", fontsize=12, color=INK, weight="bold")
        figure.text(left + width / 2, 0.41, meaning, ha="center", fontsize=9.5, color=PALE)
        graph(figure.add_axes((left, 0.195, width, 0.205)), p, n, named=False)
        for number, part in enumerate(COLORS):
            box = (left + number * (width - side), 0.07, side, side * _SHAPE[0] / _SHAPE[1])
            entries(figure.add_axes(box), p, n, part, named=False)
            figure.text(box[0] + side / 2, 0.062, part.upper(), ha="center", va="top", fontsize=10.5,
                        color=COLORS[part], weight="bold")  # fmt: skip
    note = "Strong lines: what the last token takes.  Matrices: a row is a token, a column a position it reads."
    figure.text(0.5, 0.016, note, ha="center", fontsize=9.5, color=PALE)
    return figure


def graph(axes: Axes, p: Pattern, n: int, *, named: bool) -> None:
    """Inputs at height 0, outputs at height 1: an edge for each entry of A and B, strong into the last output."""
    for part, color in COLORS.items():
        for i, j in np.argwhere(p.mask(n, part)).tolist():
            path = Path([(j, 0), (i, 1)]) if part == "a" else _arc(j, i, n)
            strong = i == n - 1
            axes.add_patch(PathPatch(path, facecolor="none", edgecolor=color, linewidth=2.2 if strong else 1.1,
                                     alpha=1.0 if strong else 0.3, zorder=2 if strong else 1))  # fmt: skip
    for name, height in (("x", 0), ("y", 1)):
        fills = [INK if name == "y" and j == n - 1 else "white" for j in range(n)]
        axes.scatter(
            range(n), [height] * n, s=900 if named else 576 / n, c=fills, edgecolors=INK, linewidths=1.2, zorder=3
        )
        for j in range(n if named else 0):
            axes.text(j, height - 0.01, f"${name}_{j + 1}$", ha="center", va="center", fontsize=15,
                      color="white" if fills[j] == INK else INK, zorder=4)  # fmt: skip
    axes.set_xlim(-0.45, n - 0.55)
    axes.set_ylim(-0.2, 1.72)
    axes.axis("off")


def _arc(start: int, end: int, n: int) -> Path:
    """From an output to a later one, above those between; the longest is 0.6 high."""
    peak = 1 + 1.2 * ((end - start) / (n - 1)) ** 0.8
    return Path([(start, 1), ((start + end) / 2, peak), (end, 1)], [Path.MOVETO, Path.CURVE3, Path.CURVE3])


def _equation(axes: Axes, n: int) -> None:
    """The recurrence in words and colors, and below it y = (I - B)^-1 A x with the matrices drawn."""
    axes.set_xlim(0, 30)
    axes.set_ylim(0, 20)
    axes.set_aspect("equal", anchor="C")
    axes.axis("off")
    for x, text, color in (
        (0.6, "$y_i\\ =$", INK),
        (4.9, "$\\sum_{j\\leq i}\\ \\alpha_{ij}\\,x_j$", COLORS["a"]),
        (12.2, "$+$", INK),
        (14.2, "$\\sum_{j<i}\\ \\beta_{ij}\\,y_j$", COLORS["b"]),
    ):
        axes.text(x, 17.2, text, fontsize=21, color=color, va="center")
    axes.text(4.9, 14.3, "from inputs", fontsize=10.5, color=COLORS["a"], va="center")
    axes.text(14.2, 14.3, "from earlier outputs", fontsize=10.5, color=COLORS["b"], va="center")
    lower = np.tri(n, dtype=np.int64)
    diagonal = np.eye(n, dtype=np.int64)
    ones = np.ones((n, 1), dtype=np.int64)
    size, low = 7.4, 3.2
    _block(axes, ones, (0.9, low, size / n, size), (EMPTY, RULE), "$y$")
    _sign(axes, 3.8, low + size / 2, "$=$")
    _parenthesis(axes, 6.4, low, size, -0.9)
    _block(
        axes, 2 * diagonal + (lower - diagonal), (6.9, low, size, size), ("white", COLORS["b"], "#9aa1ab"), "$I - B$"
    )
    _parenthesis(axes, 14.8, low, size, 0.9)
    _sign(axes, 16.4, low + size + 0.2, "$-1$", 15)
    _block(axes, lower, (17.8, low, size, size), ("white", COLORS["a"]), "$A$")
    _block(axes, ones, (26.4, low, size / n, size), (EMPTY, RULE), "$x$")


def _block(
    axes: Axes, cells: npt.NDArray[np.int64], box: tuple[float, float, float, float], colors: tuple[str, ...], name: str
) -> None:
    """A matrix as colored cells in a box (left, bottom, width, height), its name below."""
    left, bottom, width, height = box
    rows, columns = np.mgrid[0 : cells.shape[0] + 1, 0 : cells.shape[1] + 1]
    axes.pcolormesh(left + columns * width / cells.shape[1], bottom + height - rows * height / cells.shape[0], cells,
                    cmap=ListedColormap(list(colors)), vmin=0, vmax=len(colors) - 1, edgecolors="white",
                    linewidth=1.2)  # fmt: skip
    axes.text(left + width / 2, bottom - 0.6, name, ha="center", va="top", fontsize=15, color=INK)


def _sign(axes: Axes, x: float, y: float, text: str, size: float = 22) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=INK)


def _parenthesis(axes: Axes, x: float, low: float, size: float, bow: float) -> None:
    ends, middle = ((x, low - 0.3), (x, low + size + 0.3)), (x + 2 * bow, low + size / 2)
    path = Path([ends[0], middle, ends[1]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
    axes.add_patch(PathPatch(path, facecolor="none", edgecolor=INK, linewidth=2))


def _heading(figure: Figure, y: float, text: str) -> None:
    figure.text(0.5, y, text, ha="center", va="center", fontsize=14.5, color=INK, weight="bold")
