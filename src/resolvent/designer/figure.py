"""The figure of a design: what any pattern needs, where the budget ends, and the candidates. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from resolvent.analysis.figures.pages import NotebookFigure
from resolvent.analysis.figures.palette import INK, NAVY, ORANGE
from resolvent.analysis.figures.panels import label
from resolvent.analysis.frontier import fewest_hops, least_congestion
from resolvent.designer.candidate import Candidate

if TYPE_CHECKING:
    from resolvent.designer.design import Design

_SHOWN = 8


def design_figure(design: Design) -> NotebookFigure:
    """Hops and congestion against the cache: the proven frontier, the budget, and the best of each kind by number."""
    n, limits, shown = design.n, design.budget.limits, design.candidates[:_SHOWN]
    names = [f"{rank}  {each.structure.label}" for rank, each in enumerate(shown, 1)]
    figure = NotebookFigure(12, 6.2, f"{design.title}: hops and congestion against cache slots of {'; '.join(names)}")
    figure.suptitle(design.title, fontsize=12, color=INK, weight="bold")
    left, right = figure.subplots(1, 2)
    most = max([limits.get("slots", 1.0), *(each.figures.slots for each in shown)])
    sizes = np.unique(np.round(np.geomspace(1, min(max(4 * most, 4), max(n - 1, 2)), 160)).astype(int)).tolist()
    _bound(left, sizes, [fewest_hops(s, n) for s in sizes], "least of one pattern in all heads: C(s+h, s) ≥ n")
    if design.shape.states > 1:
        mixed = [fewest_hops(s * design.shape.states, n) for s in sizes]
        left.plot(sizes, mixed, color=NAVY, linewidth=1.2, linestyle=":", label="least of any mix over heads")
    _bound(right, sizes, [least_congestion(s, n) for s in sizes], "least: n / s")
    for axes, name, text in ((left, "max_hops", f"most hops over {n:,} tokens"), (right, "congestion", "congestion")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        highest = _points(axes, name, shown)
        if "slots" in limits:
            axes.axvline(limits["slots"], color=ORANGE, linewidth=1.2, linestyle="--", label="the budget")
        if name in limits:
            axes.axhline(limits[name], color=ORANGE, linewidth=1.2, linestyle="--", label="the budget")
        axes.set_ylim(0.5, 16 * highest)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        label(axes, "", "cache slots of a head, mean over heads", text)
    handles = [left.scatter([], [], marker="o", color=ORANGE) for _ in names]
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9, handlelength=1)
    return figure


def _bound(axes: Axes, sizes: Sequence[int], values: Sequence[float], text: str) -> None:
    axes.plot(sizes, values, color=NAVY, linewidth=1.6, label=text)
    axes.fill_between(sizes, 0.2, values, color=INK, alpha=0.07, linewidth=0)


def _points(axes: Axes, name: str, candidates: Sequence[Candidate]) -> float:
    """Points with their numbers, which share a label where they coincide. Returns the highest value."""
    at: dict[tuple[float, float], list[str]] = {}
    for rank, each in enumerate(candidates, 1):
        at.setdefault((round(each.figures.slots, 6), each.figures.value(name)), []).append(str(rank))
    close: dict[tuple[int, int], list[tuple[tuple[float, float], list[str]]]] = {}
    for point, ranks in at.items():  # those too near to tell apart are named together
        cell = (round(4 * np.log2(point[0])), round(2 * np.log2(max(point[1], 1))))
        close.setdefault(cell, []).append((point, ranks))
        axes.scatter(*point, s=46, color=ORANGE, edgecolor="white", zorder=4)
    for group in close.values():
        axes.annotate(
            ", ".join(rank for _, ranks in group for rank in ranks), group[0][0], xytext=(9, 7),
            textcoords="offset points", ha="left", fontsize=9.5, color=INK, weight="bold", zorder=5,
        )  # fmt: skip
    return max(y for _, y in at)
