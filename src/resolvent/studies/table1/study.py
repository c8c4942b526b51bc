"""Table 1 as a study: what its records show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from resolvent.studies.study import Claims, Graded, Option, Selection, Study, StudyFigure, StudyPlan, StudyReport
from resolvent.studies.table1 import figures, table
from resolvent.studies.table1.cells import PRESETS, cells
from resolvent.studies.table1.claims import CLAIMS, RULE
from resolvent.studies.table1.table import StructureResult
from resolvent.train.record import Record

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
            preset, out, structures=selection.structures, tasks=selection.tasks, seeds=selection.seeds,
            changes=selection.changes,
        )  # fmt: skip
        return StudyPlan(preset, about, out, chosen)

    def report(self, records: Sequence[Record]) -> StudyReport:
        results = table.structure_results(records)
        tasks = table.tasks_of(results)
        by_hops = table.by_hops(results)
        drawn = [
            StudyFigure(
                f"{table.TASK_TITLES[task]}: accuracy",
                partial(figures.task_figure, results, task),
                caption=figures.TASK,
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
                    partial(figures.trade_figure, results),
                    caption=figures.TRADE,
                ),
            ),
        )


def _graded(results: Sequence[StructureResult]) -> tuple[Graded, ...]:
    """Every claim about tasks that were run."""
    scores = {(task, result.structure): values for result in results for task, values in result.scores.items()}
    tasks = set(table.tasks_of(results))
    return tuple(Graded(claim.source, str(claim), claim.grade(scores)) for claim in CLAIMS if claim.task in tasks)


TABLE1 = Table1Study(
    name="table1",
    title="Table 1",
    about="The paper's Table 1: nine structures on three tasks, with theory, accuracies, figures and graded claims.",
    page="report.html",
)
