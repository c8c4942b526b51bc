"""Table 1 as a study: what its records show, and its figures: learning curves, accuracy by size and against theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.analysis.figures.palette import GRID, color_of_structure
from resolvent.studies.grade import mean
from resolvent.studies.study import Claims, Graded, Option, Selection, Study, StudyFigure, StudyPlan, StudyReport
from resolvent.studies.table1 import table
from resolvent.studies.table1.cells import PRESETS, cells
from resolvent.studies.table1.claims import CLAIMS, RULE
from resolvent.studies.table1.table import StructureResult
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Segment = tuple[tuple[float, float], tuple[float, float]]

_LABELS = {"curve": "steps", "size": "size (symbols or pairs)"}

# What to see in each figure.
_TASK = "A line for each seed, on the left while it learns, then by what makes a sequence hard; dotted, the best guess."
_TRADE = "Above, by what a structure reads; below, by congestion, which predicts where points fall to the right."
_DEFAULT = "small"
_PRESETS = ((_DEFAULT, PRESETS[_DEFAULT].about), *((name, p.about) for name, p in PRESETS.items() if name != _DEFAULT))


@final
@dataclass(frozen=True, kw_only=True)
class Table1Study(Study):
    """Structures on synthetic tasks."""

    options: tuple[Option, ...] = ("tasks",)
    presets: tuple[tuple[str, str], ...] = _PRESETS

    def plan(self, selection: Selection) -> StudyPlan:
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / f"{self.name}-{preset}"
        chosen = cells(
            preset,
            out,
            structures=selection.structures,
            tasks=selection.tasks,
            seeds=selection.seeds,
            changes=selection.changes,
        )
        return StudyPlan(preset, about, out, chosen)

    def report(self, records: Sequence[Record]) -> StudyReport:
        results = table.structure_results(records)
        tasks = table.tasks_of(results)
        by_hops = table.by_hops(results)
        drawn = [
            StudyFigure(
                f"{table.TASK_TITLES[task]}: accuracy",
                partial(_task_figure, results, task),
                caption=_TASK,
            )
            for task in tasks
        ]
        return StudyReport(
            tables=(table.table(results), *([] if by_hops is None else [by_hops])),
            brief=table.brief(results),
            captions=("accuracy in %, in brackets the paper's at its larger scale",),
            notes=table.notes(results, records),
            claims=Claims("Claims of the paper", RULE, _graded(results)),
            figures=(
                *drawn,
                StudyFigure(
                    "accuracy against cost and congestion",
                    partial(_trade_figure, results),
                    caption=_TRADE,
                ),
            ),
        )


def _graded(results: Sequence[StructureResult]) -> tuple[Graded, ...]:
    scores = {(task, result.structure): values for result in results for task, values in result.scores.items()}
    tasks = set(table.tasks_of(results))
    return tuple(Graded(claim.source, str(claim), claim.grade(scores)) for claim in CLAIMS if claim.task in tasks)


def _task_figure(results: Sequence[StructureResult], task: str) -> Figure:
    """Learning curves, accuracy by size, and by what else the task is sliced by."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    records = [record for result in results for record in result.records.get(task, ())]
    panels = ["curve", *table.evaluation_of(records[0]).slices][:3]
    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for result in results:
            for record in result.records.get(task, ()):
                axes.plot(*_line(record, panel), color=_color(result, results), marker=".", lw=1.3, alpha=0.85)
        axes.axhline(table.best_guess(results, task), color="#767676", lw=0.9, ls=":")
        _style(axes, _LABELS.get(panel, panel))
    end_labels(
        axes, [*_ends(results, task, panel), (0, table.best_guess(results, task), "the best guess", "#767676")], size=7
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


def _trade_figure(results: Sequence[StructureResult]) -> Figure:
    """Accuracy against reads per token, and against congestion: a column for each task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import name_points, rings

    tasks = table.tasks_of(results)
    figure = Figure(figsize=(max(4.6 * len(tasks), 6), 7.2), layout="constrained")
    FigureCanvasAgg(figure)  # names are placed by their extent
    panels = figure.subplots(2, len(tasks), sharex="row", sharey=True, squeeze=False)
    infinite = 2 * max(result.profile.n for result in results)
    named: list[tuple[Axes, list[tuple[float, float]], list[str], list[Segment]]] = []
    for row, label in enumerate(("past positions read per token (mean)", "congestion, lower bound")):
        for axes, task in zip(panels[row], tasks, strict=True):
            shown = [result for result in results if task in result.records]
            at = [(_cost(result, row, infinite), mean(result.scores[task])) for result in shown]
            bars = [((x, min(r.scores[task])), (x, max(r.scores[task]))) for r, (x, _) in zip(shown, at, strict=True)]
            colors: dict[tuple[float, float], list[str]] = {}
            for result, point, ((x, low), (_, high)) in zip(shown, at, bars, strict=True):
                axes.plot([x, x], [low, high], color=_color(result, results), lw=1.2)
                colors.setdefault(point, []).append(_color(result, results))
            for point, same in colors.items():
                rings(axes, point, same, size=40)
            axes.set_xscale("log", base=2)
            axes.margins(x=0.2)
            _style(axes, label)
            axes.set_ylim(-0.04, 1.06)
            axes.xaxis.set_major_formatter(_infinite_from(infinite) if row else "{x:g}")
            named.append((axes, at, [result.structure for result in shown], bars))
    for axes, task in zip(panels[0], tasks, strict=True):
        axes.set_title(table.TASK_TITLES[task], fontsize=10)
    if any(math.isinf(result.congestion.lower) for result in results):
        panels[1][0].set_xticks([*(2**k for k in range(0, infinite.bit_length() - 1, 2)), infinite])
    figure.draw_without_rendering()
    for axes, at, names, bars in named:
        name_points(axes, at, names, bars, size=7)
    return figure


def _cost(result: StructureResult, row: int, infinite: int) -> float:
    """Reads per token in the first row, congestion in the second; without a path, the right edge."""
    if row == 0:
        return result.profile.reads_per_token.mean
    return infinite if math.isinf(result.congestion.lower) else float(result.congestion.lower)


def _infinite_from(edge: float) -> Callable[[float, object], str]:
    return lambda value, _: "∞" if value >= edge else f"{value:g}"


def _line(record: Record, panel: str) -> tuple[list[float], list[float]]:
    if panel == "curve":
        return [point.step for point in record.curve], [point.value for point in record.curve]
    slices = table.evaluation_of(record).slices[panel]
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


TABLE1 = Table1Study(
    name="table1",
    title="Table 1",
    about="The paper's Table 1: nine structures on three tasks, with theory, accuracies, figures and graded claims.",
    page="report.html",
)
