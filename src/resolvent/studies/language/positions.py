"""`study length`: longer contexts than models were trained on, with different rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.analysis.figures.palette import INK
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.studies.grade import Grade, no_worse
from resolvent.studies.grid import Cell, finished
from resolvent.studies.language import lengths
from resolvent.studies.language.claims import MARGIN, PERPLEXITY, SINGLE, OfOne, TextStatement
from resolvent.studies.language.figures import bands, by_position, label_axes, length_figure
from resolvent.studies.language.lengths import LengthPlan
from resolvent.studies.language.study import TEXT_OPTIONS, TextStudy
from resolvent.studies.language.table import Column, spread
from resolvent.studies.language.variants import Variant, name_of
from resolvent.studies.study import Measure, Selection, TextTable
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLAIN = "rotary"
_ACROSS = 3  # panels beside one another
_CAPTION = "What stays flat right of the dotted line holds beyond the length that it was trained on."


@final
@dataclass(frozen=True)
class Keeps(OfOne[Variant]):
    """The longest contexts against those of the trained length: the same models on the same targets, seed by seed."""

    rule = (
        f"Keeps: for no seed is the perplexity in the longest contexts above that at the trained length by more than "
        f"{MARGIN:.1%}; contradicted if it is for all, or by more than {SINGLE:.0%} for a single one. All else "
        "is open."
    )

    def __str__(self) -> str:
        return f"{self.name} keeps its perplexity"

    def _grade(self, *run: Variant) -> Grade:
        (own,) = run
        gains, trained = [], own.context
        for seed in own.runs:
            losses = {each.context: each.loss for each in seed.lengths}
            if max(losses, default=0) > trained:
                gains.append(losses[trained] - losses[max(losses)])
        return no_worse(gains, [0.0] * len(gains), PERPLEXITY)


def statements(variants: Sequence[Variant]) -> list[TextStatement]:
    """For every variant in the records."""
    return [Keeps("asked, not claimed: models hold in longer contexts", variant.name) for variant in variants]


def tables(variants: Sequence[Variant]) -> tuple[TextTable, ...]:
    """Perplexity in the longest contexts, positions by structure: none if all have the same positions."""
    kinds = _kinds(variants)
    if len(kinds) < 2:
        return ()
    longest = max(length for variant in variants for length in variant.lengths)
    by_name = {(name_of(v.structure, v.rule), v.positions): v.at_length(longest) for v in variants}
    rows = []
    for structure in dict.fromkeys(name for name, _ in by_name):
        cells = [by_name.get((structure, kind), []) for kind in kinds]
        rows.append((structure, *(spread(values, 2) if values else "" for values in cells)))
    return (TextTable((f"at {longest:,}", *(kind or _PLAIN for kind in kinds)), tuple(rows)),)


def figure(variants: Sequence[Variant]) -> Figure:
    """Perplexity by position in the longest contexts, a panel for each kind of positions; bands from least to most."""
    kinds = _kinds(variants)
    if len(kinds) < 2:
        return length_figure(variants)
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    from resolvent.analysis.figures.labels import end_labels

    down = -(-len(kinds) // _ACROSS)
    made = Figure(figsize=(13, 3.6 * down + 0.5), layout="constrained")
    grid = made.subplots(down, _ACROSS, sharex=True, sharey=True, squeeze=False).flatten()
    always = [v for v in variants if not v.positions and len([w for w in variants if w.structure == v.structure]) == 1]
    ends = []
    for axes, kind in zip(grid, kinds, strict=False):
        ends.append(bands(axes, [v for v in variants if v.positions == kind or v in always], variants, by_position))
        axes.axvline(variants[0].context, color=INK, lw=0.9, ls=":")
        axes.set_yscale("log")
        axes.set_xscale("log", base=2)
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_title(kind or _PLAIN, fontsize=9)
        label_axes(axes, "position", "perplexity" if axes in grid[::_ACROSS] else "")
    for axes in grid[len(kinds) :]:
        axes.set_visible(False)
    plain = {v.name: name_of(v.structure, v.rule) for v in variants}
    for number, own in enumerate(ends):
        if number % _ACROSS == _ACROSS - 1 or number == len(ends) - 1:  # the last in its row
            end_labels(grid[number], [(x, y, plain[name], color) for x, y, name, color in own], size=7.5)
    return made


def _kinds(variants: Sequence[Variant]) -> list[str]:
    return list(dict.fromkeys(variant.positions for variant in variants))


def length_columns(variants: Sequence[Variant]) -> list[Column]:
    def at(length: int) -> Column:
        return Column(f"{length:,}", lambda v: spread(values, 2) if (values := v.at_length(length)) else "–")

    lengths = sorted({length for variant in variants for length in variant.lengths})
    if not any(variant.positions for variant in variants):
        return [Column("structure", lambda v: v.name), *map(at, lengths)]
    names = [Column("structure", lambda v: name_of(v.structure, v.rule)), Column("positions", lambda v: v.positions)]
    return [*names, *map(at, lengths)]


def length_notes(variants: Sequence[Variant]) -> list[str]:
    targets = sorted({each.tokens for variant in variants for run in variant.runs for each in run.lengths})
    what = f"the first {targets[-1]:,} tokens of the validation split" if _partly(variants) else "the validation split"
    notes = [
        f"Perplexity on {what} in contexts of each length; trained at {variants[0].context:,}. Every "
        "target counts once at each length; mean ± half the spread over seeds. The paper claims nothing about lengths "
        "beyond those trained on."
    ]
    if any(variant.positions for variant in variants):
        notes.append(
            "Positions: rotary with base 10,000 where nothing is said; behind an arrow, what the same weights were "
            "measured with; otherwise what they were trained with. linear divides positions by the factor, ntk "
            "stretches the base, capped takes min(i - j, within) for the distance, near turns no read beyond that."
        )
    return notes


def _partly(variants: Sequence[Variant]) -> bool:
    """Whether models were measured on less than their runs were evaluated on."""
    return any(each.tokens < run.evaluation.tokens for v in variants for run in v.runs for each in run.lengths)


def _in_longer_contexts(cells: Sequence[Cell], selection: Selection, _: Path) -> tuple[Measure, int]:
    """Multiples of the trained length. What does not fit raises an error, before anything is trained."""
    plan = LengthPlan(tuple(selection.times or lengths.TIMES), tuple(selection.evaluated_ropes or ()), selection.tokens)

    def measure(advance: Callable[[], None]) -> list[Record]:
        return [lengths.measured(cell, plan, advance) for cell in finished(cells)]

    return measure, sum(plan.count(cell) for cell in cells)


LENGTH = TextStudy(
    name="length",
    title="longer contexts than trained on",
    about="Models in longer contexts than they were trained on: perplexity by length, and by position.",
    page="length.html",
    structures=tuple(PAPER_STRUCTURES),
    columns=length_columns,
    notes=length_notes,
    statements=statements,
    figure=figure,
    caption=_CAPTION,
    breakdown=tables,
    measuring=_in_longer_contexts,
    options=(*TEXT_OPTIONS, "times", "ropes", "evaluated_ropes", "tokens"),
)
