"""The role of the dimension (paper, section 4.3): copying with narrower and wider heads, against congestion."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.analysis.congestion import congestion
from resolvent.analysis.figures.palette import GRID, color_of_structure
from resolvent.errors import SettingError
from resolvent.studies.grade import better, by_seed, mean
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
from resolvent.studies.table1.cells import preset_of, run_config
from resolvent.studies.table1.claims import ACCURACY
from resolvent.studies.table1.table import evaluation_of, percent, structure_of
from resolvent.tasks import Copy
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRUCTURES = ("first-order", "order:8", "exponential+cache", "dense")  # congestion 24, 3, 5 and 1
_PRESETS = {"small": (8, 16, 32, 64), "smoke": (4, 8)}  # channels of each head
_ABOUT = {
    "small": "heads of 8 to 64 channels, two seeds: 32 runs, half an hour on two cores",
    "smoke": "heads of 4 and 8 channels, 60 steps: to see that it runs",
}
_SEEDS = 2
_FIRST_SEED = 20  # settings of `table1 small`, whose copy this is, were chosen on others

_CAPTION = "On the right, curves that fall onto one another would say that channels per congestion is what counts."


@dataclass(frozen=True)
class StructureByWidth:
    """A structure: the congestion of copying, and the accuracy of each seed by channels of a head."""

    structure: str
    congestion: int | float
    scores: dict[int, list[float]]


@final
@dataclass(frozen=True, kw_only=True)
class DimensionStudy(Study):
    """Copy at several widths; heads, blocks and everything else stay as they are."""

    options: tuple[Option, ...] = ("first_seed",)
    presets: tuple[tuple[str, str], ...] = tuple(_ABOUT.items())

    def plan(self, selection: Selection) -> StudyPlan:
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / f"{self.name}-{preset}"
        size = preset_of("small", ["copy"])
        if preset == "smoke":
            train = dataclasses.replace(size.train, steps=60, warmup=10, eval_every=30, eval_batches=2)
            size = dataclasses.replace(size, train=train, tasks={"copy": Copy(vocab_size=32, length=8, least=4)})
        first = _FIRST_SEED if selection.first_seed is None else selection.first_seed
        cells = []
        for seed in range(first, first + (selection.seeds or _SEEDS)):
            for structure in selection.structures or _STRUCTURES:
                for width in _PRESETS[preset]:
                    config = run_config(size, "copy", structure, seed)
                    model = dataclasses.replace(config.model, dim=width * config.model.heads)
                    folder = out / structure.replace("/", "_") / slug(f"head{width}") / f"seed{seed}"
                    config = dataclasses.replace(config, model=model).changed(selection.changes)
                    cells.append(Cell("copy", f"{structure}, heads of {width}", seed, config, folder))
        return StudyPlan(preset, about, out, cells)

    def report(self, records: Sequence[Record]) -> StudyReport:
        results = results_of(records)
        widths = sorted({width for result in results for width in result.scores})
        head = ("structure", "congestion", *(f"heads of {width}" for width in widths))
        rows = [
            (r.structure, _number(r.congestion), *(percent(r.scores[w]) if w in r.scores else "–" for w in widths))
            for r in results
        ]
        table = TextTable(head, tuple(rows))
        return StudyReport(
            tables=(table,),
            brief=TextTable(tuple(name.replace(" of ", "\nof ") for name in head), table.rows),
            captions=("accuracy of copying in %, by the channels of each head",),
            notes=_notes(records),
            claims=Claims("Claims of the paper", _RULE, tuple(map(_graded, results))),
            figures=(StudyFigure("accuracy of copying by width", partial(_figure, results), True, _CAPTION),),
        )


def results_of(records: Sequence[Record]) -> list[StructureByWidth]:
    """One for each structure, in the order of the records."""
    lengths = set()
    for record in records:
        if not isinstance(record.config.task, Copy):
            raise SettingError(f"expected records of copy, got one of {record.config.task.name}.")
        lengths.add(record.config.task.length)
    scores: dict[str, dict[int, list[float]]] = {}
    for (structure, width), seeds in by_seed(records, lambda r: (structure_of(r), _head_width(r))).items():
        scores.setdefault(structure, {})[width] = [evaluation_of(record).accuracy for record in seeds]
    if len(lengths) != 1:
        raise SettingError(f"expected copies of one length, got {sorted(lengths)}.")
    tokens = lengths.pop()
    return [
        StructureByWidth(structure, congestion(structure, tokens).lower, by_width)
        for structure, by_width in scores.items()
    ]


def _head_width(record: Record) -> int:
    return record.config.model.dim // record.config.model.heads


_RULE = (
    f"Every seed with the widest heads is above every seed with the narrowest by more than {ACCURACY.margin:.0%}; "
    f"contradicted if it is the other way round. Where there is a single seed, {ACCURACY.single:.0%} are needed."
)


def _graded(result: StructureByWidth) -> Graded:
    widths = sorted(result.scores)
    grade = better(result.scores[widths[-1]], result.scores[widths[0]], ACCURACY) if len(widths) > 1 else "not run"
    return Graded(
        "§4.3: the channel dimension can compensate for the higher congestion",
        f"{result.structure}: heads of {widths[-1]} > heads of {widths[0]}",
        grade,
    )


def _notes(records: Sequence[Record]) -> tuple[str, ...]:
    first = records[0].config
    seeds = sorted({record.seed for record in records})
    assert isinstance(first.task, Copy)
    return (
        f"Accuracy: % of copied tokens, mean ± half the spread over seeds; copies of up to {first.task.length} "
        f"symbols, {first.model.layers} blocks, {first.model.heads} heads, {first.train.steps:,} steps of "
        f"{first.train.batch}. "
        f"Congestion is that of copying {first.task.length} tokens. Learning rate {first.train.learning_rate} at every "
        "width. Wider models have more parameters everywhere, not in the mixer alone.",
        f"Seeds {', '.join(map(str, seeds))}. {provenance(records)}",
    )


def _figure(results: Sequence[StructureByWidth]) -> Figure:
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    ends: list[tuple[float, float, str, str]] = []
    for result in results:
        widths, color = (
            sorted(result.scores),
            color_of_structure(result.structure, [each.structure for each in results]),
        )
        means = [mean(result.scores[width]) for width in widths]
        ends.append((widths[-1], means[-1], f"{result.structure} (C = {_number(result.congestion)})", color))
        left.plot(widths, means, "o-", color=color, ms=4, lw=1.3)
        for width in widths:
            left.plot([width] * len(result.scores[width]), result.scores[width], ".", color=color, alpha=0.5)
        if not math.isinf(result.congestion):
            right.plot([width / result.congestion for width in widths], means, "o-", color=color, ms=4, lw=1.3)
    for axes, label in ((left, "channels of a head"), (right, "channels of a head / congestion")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(label, fontsize=9)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color=GRID, lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    left.set_ylabel("accuracy of copying", fontsize=9)
    end_labels(left, ends, size=7)
    return figure


def _number(value: int | float) -> str:
    return "∞" if math.isinf(value) else f"{int(value)}"


DIMENSION = DimensionStudy(
    name="dimension",
    title="the role of the dimension",
    about="Copying with narrower and wider heads: does the dimension make up for congestion?",
    page="dimension.html",
)
