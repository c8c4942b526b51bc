"""Figures of Table 1: learning curves, accuracy by size, and accuracy against what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resolvent.analysis.figures.palette import GRID, color_of_structure
from resolvent.studies.grade import mean
from resolvent.studies.table1.table import TASK_TITLES, StructureResult, best_guess, evaluation_of, tasks_of
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LABELS = {"curve": "steps", "size": "size (symbols or pairs)"}
_MARKERS = "osD"


def task_figure(results: Sequence[StructureResult], task: str) -> Figure:
    """Learning curves, accuracy by size, and by what else the task is sliced by."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    records = [record for result in results for record in result.records.get(task, ())]
    panels = ["curve", *evaluation_of(records[0]).slices][:3]
    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for result in results:
            for record in result.records.get(task, ()):
                axes.plot(*_line(record, panel), color=_color(result, results), marker=".", lw=1.3, alpha=0.85)
        axes.axhline(best_guess(results, task), color="#767676", lw=0.9, ls=":")
        _style(axes, _LABELS.get(panel, panel))
    end_labels(
        axes, [*_ends(results, task, panel), (0, best_guess(results, task), "the best guess", "#767676")], size=7
    )
    return figure


def _ends(results: Sequence[StructureResult], task: str, panel: str) -> list[tuple[float, float, str, str]]:
    """Where the lines of each structure end, on average over seeds."""
    ends = []
    for result in results:
        lines = [_line(record, panel) for record in result.records.get(task, ())]
        if lines:
            ends.append((lines[0][0][-1], mean([y[-1] for _, y in lines]), result.structure, _color(result, results)))
    return ends


def trade_figure(results: Sequence[StructureResult]) -> Figure:
    """Accuracy on each task against reads per token, and against congestion."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    markers = dict(zip(tasks_of(results), _MARKERS, strict=False))
    for result in results:
        p, bounds = result.profile, result.congestion
        congestion = 2 * p.n if bounds.lower == float("inf") else bounds.lower
        for task in result.records:
            scores = result.scores[task]
            left.plot(p.reads_per_token.mean, mean(scores), markers[task], color=_color(result, results))
            right.plot(congestion, mean(scores), markers[task], color=_color(result, results))
    labels = ("past positions read per token (mean)", "congestion, lower bound (right edge: ∞)")
    for axes, label in zip((left, right), labels, strict=True):
        axes.set_xscale("log")
        _style(axes, label)
    for task, marker in markers.items():
        right.plot([], [], marker, color="#666", label=TASK_TITLES[task])
    for result in results:
        right.plot([], [], "o", color=_color(result, results), label=result.structure)
    right.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _line(record: Record, panel: str) -> tuple[list[float], list[float]]:
    if panel == "curve":
        return [point.step for point in record.curve], [point.value for point in record.curve]
    slices = evaluation_of(record).slices[panel]
    return [(each.first + each.last) / 2 for each in slices], [each.value for each in slices]


def _color(result: StructureResult, among: Sequence[StructureResult]) -> str:
    return color_of_structure(result.structure, [each.structure for each in among])


def _style(axes: Axes, x: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel("accuracy", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(color=GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
