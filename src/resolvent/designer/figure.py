"""The figure of a design: what any pattern needs, where the budget ends, and the candidates. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent.analysis.figures.labels import spread
from resolvent.analysis.figures.palette import INK, NAVY, ORANGE
from resolvent.analysis.figures.panels import label
from resolvent.analysis.frontier import fewest_hops, least_congestion
from resolvent.designer.candidate import Candidate

if TYPE_CHECKING:
    from resolvent.designer.design import Design

_SHOWN = 8
_GAP = 0.04  # between numbers, as a share of the axes


def design_figure(design: Design) -> Figure:
    """Hops and congestion against the cache: the proven frontier, the budget, and the best of each kind by number."""
    n, limits, shown = design.n, design.budget.limits, design.candidates[:_SHOWN]
    names = [f"{rank}  {each.structure.label}" for rank, each in enumerate(shown, 1)]
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    figure.suptitle(design.title, fontsize=12, color=INK, weight="bold")
    left, right = figure.subplots(1, 2)
    most = max([limits.get("slots", 1.0), *(each.figures.slots for each in shown)])
    sizes = np.unique(np.round(np.geomspace(1, min(max(4 * most, 4), max(n - 1, 2)), 160)).astype(int)).tolist()
    _bound(left, sizes, [fewest_hops(s, n) for s in sizes], "below: no pattern that is the same in all heads")
    if design.shape.states > 1:
        mixed = [fewest_hops(s * design.shape.states, n) for s in sizes]
        left.plot(sizes, mixed, color=NAVY, linewidth=1.2, linestyle=":")
        _note(left, "the least of any mix over heads", (sizes[-1], mixed[-1]), (0, -13), align="right")
    _bound(right, sizes, [least_congestion(s, n) for s in sizes], "below: no pattern, since slots × congestion ≥ n - 1")
    for axes, name, text in ((left, "max_hops", f"most hops over {n:,} tokens"), (right, "congestion", "congestion")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        highest = _points(axes, name, shown)
        axes.set_ylim(0.5, 16 * highest)
        if "slots" in limits:
            axes.axvline(limits["slots"], color=ORANGE, linewidth=1.2, linestyle="--")
            _note(axes, "budget", (limits["slots"], 16 * highest), (5, -12), color=ORANGE)
        if name in limits:
            axes.axhline(limits[name], color=ORANGE, linewidth=1.2, linestyle="--")
            _note(axes, "budget", (sizes[0], limits[name]), (6, 4), color=ORANGE)
        axes.grid(alpha=0.25)
        label(axes, "", "cache slots of a head, mean over heads", text)
    handles = [left.scatter([], [], marker="o", color=ORANGE) for _ in names]
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9, handlelength=1)
    return figure


def _bound(axes: Axes, sizes: Sequence[int], values: Sequence[float], text: str) -> None:
    axes.plot(sizes, values, color=NAVY, linewidth=1.6)
    axes.fill_between(sizes, 0.2, values, color=INK, alpha=0.07, linewidth=0)
    _note(axes, text, (0, 0), (8, 6), coordinates="axes fraction")


def _note(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    shift: tuple[float, float],
    *,
    color: str = NAVY,
    align: str = "left",
    coordinates: str = "data",
) -> None:
    axes.annotate(
        text, point, xycoords=coordinates, xytext=shift, textcoords="offset points", ha=align, fontsize=8.5, color=color
    )


def _points(axes: Axes, name: str, candidates: Sequence[Candidate]) -> float:
    """Points with their numbers, which share a place where they nearly coincide. Returns the highest value."""
    at: dict[tuple[float, float], list[str]] = {}
    for rank, each in enumerate(candidates, 1):
        at.setdefault((round(each.figures.slots, 6), each.figures.value(name)), []).append(str(rank))
    highest = max(y for _, y in at)
    gap = _GAP * float(np.log2(32 * highest))  # the axes span as many doublings
    groups: list[tuple[int, float, list[str]]] = []  # column, height, and the numbers there
    for point in sorted(at, key=lambda point: point[1]):
        axes.scatter(*point, s=46, color=ORANGE, edgecolor="white", zorder=4)
        column, height = round(4 * np.log2(point[0])), float(np.log2(max(point[1], 1)))
        same = [names for other, low, names in groups if other == column and height - low < gap / 2]
        if same:
            same[0].extend(at[point])
        else:
            groups.append((column, height, list(at[point])))
    for column in {column for column, _, _ in groups}:
        own = [(height, names) for other, height, names in groups if other == column]
        for (_, names), moved in zip(own, spread([height for height, _ in own], gap), strict=True):
            axes.annotate(
                ", ".join(sorted(names)),
                (2 ** (column / 4), 2**moved),
                xytext=(10, -1),
                textcoords="offset points",
                va="bottom",
                fontsize=9.5,
                color=INK,
                weight="bold",
                zorder=5,
            )
    return highest
