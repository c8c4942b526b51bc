"""The in-context study: what is run, and what its records show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from resolvent.studies.incontext import claims, figures, table, theory
from resolvent.studies.incontext.cells import PRESETS, cells
from resolvent.studies.incontext.results import results
from resolvent.studies.study import Claims, Option, Selection, Study, StudyFigure, StudyPlan, StudyReport, provenance
from resolvent.train.record import Record

_COMPLEXITY = "Lower left is better; no reader of the past can be below the solid line."
_POSITION = (
    "Lines that go on falling make use of more of the past; the solid black one is the best that counting can do."
)
_BUDGET = (
    "Distance from the best possible: what falls with more steps is still learning, what rises with longer documents "
    "misses more of the past."
)
_TABLES = "Lines that fall to the right go less of the way to attention where there are more pairs to count."
_REACH = "In color the model; dashed, readers that count only what comes within so many hops."


@final
@dataclass(frozen=True, kw_only=True)
class InContextStudy(Study):
    """Structures on the in-context Markov language. All presets share their runs in one folder."""

    options: tuple[Option, ...] = ("first_seed", "records")
    presets: tuple[tuple[str, str], ...] = tuple((name, preset.about) for name, preset in PRESETS.items())

    def plan(self, selection: Selection) -> StudyPlan:
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / self.name
        chosen = cells(
            preset, out, structures=selection.structures, seeds=selection.seeds, first_seed=selection.first_seed,
            changes=selection.changes,
        )  # fmt: skip
        return StudyPlan(preset, about, out, chosen)

    def report(self, records: Sequence[Record]) -> StudyReport:
        if (rates := table.by_rate(records)) is not None:
            caption = ("The least loss of each structure is marked.", provenance(records))
            return StudyReport((rates,), rates, caption, caption, Claims("", "", ()), ())
        groups = results(records)
        first, notes = next(iter(groups.values())), table.notes(groups, records)
        several = [table.by_setting(groups), table.shares_by_setting(groups)] if len(groups) > 1 else []
        positions = [table.by_position(group, setting if several else None) for setting, group in groups.items()]
        beside = (theory.reach_table(groups), theory.spectrum_table(first), theory.feedback_by_setting(groups),
                  theory.fit_table(groups))  # fmt: skip
        drawn = [
            StudyFigure("perplexity against complexity", partial(figures.complexity_figure, first), True, _COMPLEXITY),
            StudyFigure("loss by position", partial(figures.position_figure, first), True, _POSITION),
        ]
        if figures.varies(groups):
            drawn.append(StudyFigure("loss by budget", partial(figures.budget_figure, groups), True, _BUDGET))
        if figures.varies_in_k(groups):
            drawn.append(StudyFigure("share of the way by k", partial(figures.share_figure, groups), True, _TABLES))
        if theory.reach_lines(first[0]):
            drawn.append(StudyFigure("loss by position, and reach", partial(figures.reach_figure, first), True, _REACH))
        return StudyReport(
            tables=(table.table(first), *filter(None, (*several, *positions, *beside))),
            brief=table.by_setting(groups) if several else table.brief(first),
            captions=notes[:2],
            notes=(*notes, theory.NOTE),
            claims=claims.graded(groups),
            figures=tuple(drawn),
        )


INCONTEXT = InContextStudy(
    name="incontext",
    title="in-context Markov language",
    about="Documents with a Markov chain each: loss against complexity, beside readers whose loss is exact.",
    page="incontext.html",
)
