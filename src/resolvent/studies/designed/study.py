"""Do hops and congestion predict accuracy? The designer's picks for a budget against the paper's nearest structures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from resolvent.analysis.hops import hops
from resolvent.analysis.profile import describe
from resolvent.designer import design
from resolvent.patterns import PAPER_STRUCTURES, as_pattern
from resolvent.studies.designed.fits import FIT_HEAD, fit_cells, fit_figure, fit_text, fits_of
from resolvent.studies.designed.trained import LayerSetting, Trained, has_accuracy, layer_label, settings, trained
from resolvent.studies.grade import better
from resolvent.studies.grid import Cell, slug
from resolvent.studies.study import (
    Claims,
    Graded,
    Option,
    Selection,
    Study,
    StudyFigure,
    StudyPlan,
    StudyReport,
    TextTable,
    provenance,
)
from resolvent.studies.table1.cells import Table1Preset, preset_of, run_config
from resolvent.studies.table1.claims import ACCURACY
from resolvent.studies.table1.table import percent
from resolvent.tasks import Copy, Recall, Task
from resolvent.train.config import RunConfig
from resolvent.train.record import Record, read_records

_SLOTS, _PICKS, _NEAREST = 8, 3, 3
_TASKS = ("copy", "recall")
_TITLE = "accuracy against congestion / dimension"
_CAPTION = "A dot is a run, a ring the mean of its structure: near the dashed line, congestion alone predicts accuracy."
_PRESETS = (
    (
        "small",
        "settings of table1 small, copy and recall, three seeds: 36 runs, about 25 minutes on two cores; half of "
        "that with the records of table1",
    ),
    ("smoke", "60 steps on short sequences: to see that it runs"),
)
_RULE = (
    "Predicted: of two structures the one with less congestion, if their bounds do not overlap. Supported: every seed "
    f"of it is above every seed of the other by more than {ACCURACY.margin:.0%}; contradicted if it is the other way "
    f"round; anything else is open. Where there is a single seed, {ACCURACY.single:.0%} are needed."
)


@final
@dataclass(frozen=True, kw_only=True)
class DesignStudy(Study):
    """The designer's picks, the paper's structures nearest to the budget, and a fit over all records given."""

    options: tuple[Option, ...] = ("tasks", "first_seed", "records")
    included: str = "table1-*.jsonl"
    presets: tuple[tuple[str, str], ...] = _PRESETS

    def plan(self, selection: Selection) -> StudyPlan:
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / f"{self.name}-{preset}"
        size = _sized(preset)
        others = [record for path in selection.records or () for record in read_records(path)]
        chosen: Sequence[LayerSetting] = selection.structures or [*picks(size), *nearest(size)]
        first = size.first_seed if selection.first_seed is None else selection.first_seed
        cells = [
            Cell(task, layer_label(heads), seed, _config(size, task, heads, seed).changed(selection.changes),
                 out / task / slug(layer_label(heads)) / f"seed{seed}")
            for task in selection.tasks or _TASKS
            for seed in range(first, first + (selection.seeds or size.seeds.get(task, 1)))
            for heads in chosen
        ]  # fmt: skip
        missing = [cell for cell in cells if not any(other.config == cell.config for other in others)]
        return StudyPlan(preset, about, out, missing, partial(_all_records, missing, others), len(missing))

    def report(self, records: Sequence[Record]) -> StudyReport:
        own = _within_budget(records)
        every = trained(records, apart=True)
        fits = fits_of(every)
        head = ("structure", "task", "slots", "hops", "congestion", "accuracy")
        rows = tuple(_row(each) for each in own)
        table = TextTable(head, rows, names=2)
        fit_table = TextTable(FIT_HEAD, tuple(fit_cells(*key, fit) for key, fit in fits.items()), names=2)
        return StudyReport(
            tables=(table, fit_table),
            brief=table,
            captions=tuple(fit_text(*key, fit) for key, fit in fits.items()),
            notes=_notes(every, records),
            claims=Claims("Predictions", _RULE, _graded(own), source="predicted"),
            figures=(StudyFigure(_TITLE, partial(fit_figure, every, fits), True, _CAPTION),),
        )


def _graded(own: Sequence[Trained]) -> tuple[Graded, ...]:
    grades = []
    for one in own:
        for other in own:
            if one.task == other.task and one.congestion.upper < other.congestion.lower:
                grade = better(one.scores, other.scores, ACCURACY)
                loads = f"{describe(one.congestion)} < {describe(other.congestion)}"
                grades.append(Graded(f"{one.task}, congestion {loads}", f"{one.label} > {other.label}", grade))
    return tuple(grades)


def _row(each: Trained) -> tuple[str, ...]:
    most = "∞" if each.hops.unreachable_pairs else f"{each.hops.max}"
    return each.label, each.task, f"{each.slots:g}", most, describe(each.congestion), percent(each.scores)


def picks(size: Table1Preset) -> list[LayerSetting]:
    """The best three kinds that the designer finds for the budget, in a layer of this model."""
    model = size.model
    designed = design(_copied(size), slots=_SLOTS, heads=model.heads, head_dim=model.dim // model.heads)
    return [each.pattern for each in designed[:_PICKS]]  # type: ignore[misc]  # a design of one layer


def nearest(size: Table1Preset) -> list[LayerSetting]:
    """The paper's structures that fit the budget and connect every pair, those that use the most of it first."""
    n = _copied(size)
    fitting = [
        p for p in map(as_pattern, PAPER_STRUCTURES) if p.slots(n) <= _SLOTS and not hops(p, n).unreachable_pairs
    ]
    return [p.spelling for p in sorted(fitting, key=lambda p: -p.slots(n))[:_NEAREST]]


def _sized(preset: str) -> Table1Preset:
    size = preset_of("small", _TASKS)
    if preset != "smoke":
        return size
    train = dataclasses.replace(size.train, steps=60, warmup=10, eval_every=30, eval_batches=2)
    copy, recall = Copy(vocab_size=32, length=12, least=4), Recall(vocab_size=32, pairs=4, length=16)
    tasks: dict[str, Task] = {"copy": copy, "recall": recall}
    return dataclasses.replace(size, train=train, tasks=tasks, seeds={})


def _copied(size: Table1Preset) -> int:
    return size.tasks["copy"].longest // 2


def _config(size: Table1Preset, task: str, heads: LayerSetting, seed: int) -> RunConfig:
    """As in table1, where a structure is one pattern; heads with several stand in its place."""
    if isinstance(heads, str):
        return run_config(size, task, heads, seed)
    config = run_config(size, task, "dense", seed)
    layers = config.model.layers
    before = (size.first_blocks[task],) if task in size.first_blocks else ()
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, pattern=before + (heads,) * (layers - len(before)))
    )


def _within_budget(records: Sequence[Record]) -> list[Trained]:
    """Structures within the budget, of the runs that were made with the settings of the first one of their task."""
    return [each for each in trained(_alike(records)) if each.slots <= _SLOTS and math.isfinite(each.congestion.lower)]


def _alike(records: Sequence[Record]) -> list[Record]:
    """Those with the settings of the first of their task, but for pattern and seed."""
    first: dict[str, tuple[object, ...]] = {}
    return [
        record
        for record in records
        if record.config.task.name in _TASKS
        and first.setdefault(record.config.task.name, _whole(record)) == _whole(record)
    ]


def _whole(record: Record) -> tuple[object, ...]:
    return settings(record.config), record.config.task


def _notes(every: Sequence[Trained], records: Sequence[Record]) -> tuple[str, ...]:
    first = records[0].config
    seeds = sorted({record.seed for record in _alike(records)})
    return (
        f"Picks of the designer and the paper's structures within {_SLOTS} slots of a head, {first.model.heads} heads, "
        f"{first.model.layers} blocks, {first.train.steps:,} steps of {first.train.batch}, learning rate "
        f"{first.train.learning_rate}. Hops over the longest sequence of the task, and congestion of copying half "
        "of it, are those of the layer under study. Accuracy: % of scored tokens, mean ± half the spread.",
        "The fits: accuracy of each run against log2(congestion / channels of a state) and against log2(mean hops), "
        "over all records; congestion at its lower bound, structures without a path left out. The slope is in points "
        "of accuracy per doubling, its error that of the means of structures. Held out: each structure is predicted by "
        "the line through the others; beside it, the error if their mean is the guess. Records with other settings "
        f"(steps, gates, curricula) are in as they are. Rank: Spearman's correlation over structures. {_widths(every)}",
        f"Seeds {', '.join(map(str, seeds))}. {provenance(records)}",
    )


def _widths(every: Sequence[Trained]) -> str:
    widths = sorted({each.channels for each in every})
    if len(widths) == 1:
        return f"All runs have {widths[0]} channels, so the division by the dimension is not tested."
    return f"Channels: {', '.join(map(str, widths))}."


def _all_records(cells: Sequence[Cell], others: Sequence[Record], advance: Callable[[], None]) -> list[Record]:
    records = []
    for cell in cells:
        if (record := cell.record()) is not None:
            records.append(record)
        advance()
    return [*records, *(other for other in others if has_accuracy(other))]


DESIGN = DesignStudy(
    name="design",
    title="the designer's picks",
    about="The designer's picks for a budget against the paper's nearest structures: do hops and congestion predict "
    "accuracy?",
    page="design.html",
)
