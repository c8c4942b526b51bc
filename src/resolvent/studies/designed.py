"""Do hops and congestion predict accuracy? The designer's picks for a budget against the paper's nearest structures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.analysis.congestion import Congestion, congestion
from resolvent.analysis.hops import Hops, hops
from resolvent.analysis.profile import describe
from resolvent.analysis.reach import stack_hops
from resolvent.analysis.stack import stack_congestion
from resolvent.designer import design
from resolvent.patterns import PAPER_STRUCTURES, as_pattern
from resolvent.studies.fit import FitPoint, LineFit, fit_line
from resolvent.studies.grade import better, mean
from resolvent.studies.grid import Cell, slug
from resolvent.studies.page import COLORS
from resolvent.studies.study import (
    Claims,
    Graded,
    Number,
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
from resolvent.studies.table1.table import evaluation_of, percent
from resolvent.tasks import Copy, Recall
from resolvent.tasks.synthetic import Synthetic
from resolvent.train.config import RunConfig
from resolvent.train.record import Record, read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Heads = str | tuple[str, ...]  # of a layer: one pattern for all, or one for each

_SLOTS, _PICKS, _NEAREST = 8, 3, 3
_TASKS = ("copy", "recall")
_PRESETS = (
    ("small", "settings of table1 small, copy and recall, three seeds: 36 runs, about 25 minutes on two cores"),
    ("smoke", "60 steps on short sequences: to see that it runs"),
)
_RULE = (
    f"Predicted: of two structures the one with less congestion, if their bounds do not overlap. Supported: every seed of "
    f"it is above every seed of the other by more than {ACCURACY.margin:.0%}; contradicted if it is the other way round; "
    f"anything else is open. Where there is a single seed, {ACCURACY.single:.0%} are needed."
)


@dataclass(frozen=True)
class Trained:
    """The runs of one structure on one task, and what theory says of its last layer.

    tokens       copied, of which congestion is: half of the longest sequence
    channels     of a state: heads × their channels
    """

    heads: Heads
    task: str
    tokens: int
    channels: int
    hops: Hops
    congestion: Congestion
    scores: tuple[float, ...]

    @property
    def label(self) -> str:
        return layer_label(self.heads)

    @property
    def load(self) -> float:
        """Tokens that share a state, for each of its channels: log2 of congestion / dimension."""
        return math.log2(self.congestion.lower / self.channels)


@final
@dataclass(frozen=True, kw_only=True)
class DesignStudy(Study):
    """The designer's picks, the paper's structures nearest to the budget, and a fit over all records given."""

    options: tuple[Option, ...] = ("tasks", "first_seed", "records")
    presets: tuple[tuple[str, str], ...] = _PRESETS

    def plan(self, selection: Selection) -> StudyPlan:
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / f"{self.name}-{preset}"
        size = _sized(preset)
        others = [record for path in selection.records or () for record in read_records(path)]
        chosen: Sequence[Heads] = selection.structures or [*picks(size), *nearest(size)]
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
        own = trained([record for record in records if _alike(record, records[0])])
        every = trained(records, apart=True)
        fits = {task: fit_line(_points(every, task)) for task in dict.fromkeys(each.task for each in every)}
        head = ("structure", "task", "slots", "hops", "congestion", "accuracy")
        rows = tuple(_cells(each) for each in own)
        table = TextTable(head, rows, names=2)
        fit_table = TextTable(_FIT_HEAD, tuple(_fit_cells(task, fit, every) for task, fit in fits.items()))
        return StudyReport(
            tables=(table, fit_table),
            brief=table,
            captions=tuple(_fit_text(task, fit) for task, fit in fits.items()),
            notes=_notes(own, records),
            claims=Claims("Predictions", _RULE, _graded(own), source="predicted"),
            figures=(StudyFigure("accuracy against congestion / dimension", partial(_figure, every, fits), published=True),),
            spreadsheet=(
                ("structure", "task", "tokens", "channels", "max_hops", "mean_hops", "congestion_lower",
                 "congestion_upper", "accuracy"),
                tuple(row for each in every for row in _plain(each)),
            ),
        )  # fmt: skip


def picks(size: Table1Preset) -> list[Heads]:
    """The best three kinds that the designer finds for the budget, in a layer of this model."""
    model = size.model
    designed = design(_copied(size), slots=_SLOTS, heads=model.heads, head_dim=model.dim // model.heads)
    return [each.pattern for each in designed[:_PICKS]]  # type: ignore[misc]  # a design of one layer


def nearest(size: Table1Preset) -> list[Heads]:
    """The paper's structures that fit the budget and connect every pair, those that use the most of it first."""
    n = _copied(size)
    fitting = [p for p in map(as_pattern, PAPER_STRUCTURES) if p.slots(n) <= _SLOTS and not hops(p, n).unreachable_pairs]
    return [p.spelling for p in sorted(fitting, key=lambda p: -p.slots(n))[:_NEAREST]]


def layer_label(heads: Heads) -> str:
    """`order:8`, or `1 × binomial:15,lazy | 1 × first-order`."""
    if isinstance(heads, str) or len(set(heads)) == 1:
        return str(as_pattern(heads if isinstance(heads, str) else heads[0]))
    return " | ".join(f"{len(list(same))} × {as_pattern(name)}" for name, same in groupby(heads))


def trained(records: Sequence[Record], *, apart: bool = False) -> list[Trained]:
    """Runs by structure and task, in the order of the records; if `apart`, by model and length, too."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        task, model = record.config.task, record.config.model
        if isinstance(task, Synthetic):
            key = (_heads_of(record), task.name, task.longest, model.dim)
            groups.setdefault((*key, _settings(record.config)) if apart else key, []).append(record)
    return [_trained(group) for group in groups.values()]


def _trained(group: Sequence[Record]) -> Trained:
    config, heads = group[0].config, _heads_of(group[0])
    tokens = config.task.longest // 2
    distances, bounds = _theory(heads, tokens, config.model.heads)
    return Trained(heads, config.task.name, tokens, config.model.dim, distances, bounds,
                   tuple(evaluation_of(record).accuracy for record in sorted(group, key=lambda r: r.seed)))  # fmt: skip


@lru_cache(maxsize=256)
def _theory(heads: Heads, tokens: int, count: int) -> tuple[Hops, Congestion]:
    """Over all 2n tokens of a copy, and of the copy."""
    if isinstance(heads, str):
        return hops(heads, 2 * tokens), congestion(heads, tokens)
    layer = list(heads) if len(heads) == count else [heads[0]] * count
    return stack_hops([layer], 2 * tokens), stack_congestion([layer], tokens)


def _heads_of(record: Record) -> Heads:
    """Of the last layer: where the first has a pattern of its own, it is not the one under study."""
    pattern = record.config.model.pattern
    last = pattern[-1] if isinstance(pattern, tuple) else pattern
    return last if isinstance(last, str) else tuple(map(str, last))  # type: ignore[arg-type]


def _sized(preset: str) -> Table1Preset:
    size = preset_of("small", _TASKS)
    if preset != "smoke":
        return size
    train = dataclasses.replace(size.train, steps=60, warmup=10, eval_every=30, eval_batches=2)
    tasks = {"copy": Copy(vocab_size=32, length=12, least=4), "recall": Recall(vocab_size=32, pairs=4, length=16)}
    return dataclasses.replace(size, train=train, tasks=tasks, seeds={})


def _copied(size: Table1Preset) -> int:
    return size.tasks["copy"].longest // 2


def _config(size: Table1Preset, task: str, heads: Heads, seed: int) -> RunConfig:
    """As in table1, where a structure is one pattern; heads with several stand in its place."""
    if isinstance(heads, str):
        return run_config(size, task, heads, seed)
    config = run_config(size, task, "dense", seed)
    layers = config.model.layers
    before = (size.first_blocks[task],) if task in size.first_blocks else ()
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, pattern=before + (heads,) * (layers - len(before)))
    )


def _settings(config: RunConfig) -> tuple[object, ...]:
    """All but the pattern and the seed."""
    model = dataclasses.replace(config.model, pattern="dense", rule="softmax")
    return model, config.model.rule, dataclasses.replace(config.train, seed=0)


def _alike(record: Record, first: Record) -> bool:
    """Whether it was run with the same settings: model and training, whatever the task's curriculum."""
    one, other = (dataclasses.replace(each.config.train, seed=0, curriculum=0.0) for each in (record, first))
    sizes = [(each.config.model.dim, each.config.model.heads, each.config.model.layers) for each in (record, first)]
    plain = all("gate" not in str(each.config.model.rule) for each in (record, first))
    return one == other and sizes[0] == sizes[1] and plain and record.config.task.name in _TASKS


def _all_records(cells: Sequence[Cell], others: Sequence[Record], advance: Callable[[], None]) -> list[Record]:
    records = []
    for cell in cells:
        if (record := cell.record()) is not None:
            records.append(record)
        advance()
    return [*records, *(other for other in others if isinstance(other.config.task, Synthetic))]


def _points(every: Sequence[Trained], task: str) -> list[FitPoint]:
    finite = (each for each in every if each.task == task and math.isfinite(each.congestion.lower))
    return [FitPoint(each.label, each.load, score) for each in finite for score in each.scores]


def _graded(own: Sequence[Trained]) -> tuple[Graded, ...]:
    graded = []
    for one in own:
        for other in own:
            if one.task == other.task and one.congestion.upper < other.congestion.lower:
                grade = better(one.scores, other.scores, ACCURACY)
                loads = f"{describe(one.congestion)} < {describe(other.congestion)}"
                graded.append(Graded(f"{one.task}, congestion {loads}", f"{one.label} > {other.label}", grade))
    return tuple(graded)


def _cells(each: Trained) -> tuple[str, ...]:
    slots = [as_pattern(p).slots(each.tokens) for p in ([each.heads] if isinstance(each.heads, str) else each.heads)]
    most = "∞" if each.hops.unreachable_pairs else f"{each.hops.max}"
    return each.label, each.task, f"{mean(slots):g}", most, describe(each.congestion), percent(each.scores)


_FIT_HEAD = ("task", "runs", "structures", "slope per doubling", "R²", "error", "error, held out", "of the mean", "rank")


def _fit_cells(task: str, fit: LineFit | None, every: Sequence[Trained]) -> tuple[str, ...]:
    if fit is None:
        structures = {each.label for each in every if each.task == task}
        return (task, str(sum(len(each.scores) for each in every if each.task == task)), str(len(structures)), *["–"] * 6)
    return (
        task, str(fit.points), str(fit.groups), f"{100 * fit.slope:+.1f} ± {100 * fit.slope_error:.1f}",
        f"{fit.explained:.2f}", f"{100 * fit.rmse:.1f}", f"{100 * fit.held_out:.1f}", f"{100 * fit.constant:.1f}",
        f"{fit.rank:+.2f}",
    )  # fmt: skip


def _fit_text(task: str, fit: LineFit | None) -> str:
    if fit is None:
        return f"{task}: too few structures for a fit; add records with --records."
    verdict = "predicts" if fit.held_out < 0.8 * fit.constant else "hardly predicts"
    return (
        f"{task}: congestion / dimension {verdict} accuracy: {100 * fit.slope:+.1f} points per doubling (± "
        f"{100 * fit.slope_error:.1f}), R² {fit.explained:.2f}; off by {100 * fit.held_out:.1f} points on structures it "
        f"has not seen, against {100 * fit.constant:.1f} for their mean ({fit.points} runs, {fit.groups} structures)."
    )


def _notes(own: Sequence[Trained], records: Sequence[Record]) -> tuple[str, ...]:
    first = records[0].config
    seeds = sorted({record.seed for record in records if _alike(record, records[0])})
    return (
        f"Picks of the designer and the paper's structures within {_SLOTS} slots of a head, {first.model.heads} heads, "
        f"{first.model.layers} blocks, {first.train.steps:,} steps of {first.train.batch}, learning rate "
        f"{first.train.learning_rate}. Hops over {2 * own[0].tokens} tokens and congestion of copying "
        f"{own[0].tokens} are those of the layer under study. Accuracy: % of scored tokens, mean ± half the spread.",
        "The fit: accuracy of each run against log2(congestion / channels of a state), lower bounds, over all records; "
        "structures without a path are left out. Its slope is in points of accuracy; the error of the slope is that of "
        "means of structures. Held out: each structure is predicted by the line through the others; beside it, the "
        "error if their mean is the guess. Records with other settings (steps, gates, curricula) are in the fit as they "
        "are. Rank: Spearman's correlation over structures.",
        f"Seeds {', '.join(map(str, seeds))}. {provenance(records)}",
    )


def _plain(each: Trained) -> list[tuple[Number, ...]]:
    return [
        (each.label, each.task, each.tokens, each.channels, each.hops.max, each.hops.mean, each.congestion.lower,
         each.congestion.upper, score)
        for score in each.scores
    ]  # fmt: skip


def _figure(every: Sequence[Trained], fits: dict[str, LineFit | None]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(fits), 4.2), layout="constrained")
    labels = list(dict.fromkeys(each.label for each in every if math.isfinite(each.congestion.lower)))
    for axes, (task, fit) in zip(figure.subplots(1, len(fits), squeeze=False, sharey=True)[0], fits.items(), strict=True):
        for each in every:
            if each.task == task and each.label in labels:
                number = labels.index(each.label)
                marker = "o^sD"[number // len(COLORS) % 4]
                axes.plot([each.load] * len(each.scores), each.scores, marker, color=COLORS[number % len(COLORS)], ms=4, alpha=0.7)
        if fit is not None:
            ends = [min(each.load for each in every if each.label in labels), max(each.load for each in every if each.label in labels)]
            axes.plot(ends, [fit.intercept + fit.slope * x for x in ends], color="#1b1f24", lw=1.2, ls="--")
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("log2(congestion / channels)", fontsize=9)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color="#e8eaee", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    handles = [
        axes.plot([], [], "o^sD"[number // len(COLORS) % 4], color=COLORS[number % len(COLORS)], ms=4)[0]
        for number in range(len(labels))
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    figure.axes[0].set_ylabel("accuracy", fontsize=9)
    return figure


DESIGN = DesignStudy(
    name="design",
    title="the designer's picks",
    about="The designer's picks for a budget against the paper's nearest structures: do hops and congestion predict "
    "accuracy?",
    page="design.html",
)
