"""What structures make of a long context: the same targets given more and more of it, beside what the text offers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.analysis.figures.palette import PALE
from resolvent.fields import as_mapping
from resolvent.files import require_writable, write_text
from resolvent.studies.grade import Grade, better
from resolvent.studies.grid import Cell, finished
from resolvent.studies.language import claims, lengths, table
from resolvent.studies.language.claims import PERPLEXITY, OfOne, TextStatement
from resolvent.studies.language.figures import bands, label_axes
from resolvent.studies.language.presets import PRESETS
from resolvent.studies.language.study import TextStudy
from resolvent.studies.language.table import Column, spread
from resolvent.studies.language.variants import TextRun, Variant
from resolvent.studies.study import Measure, Selection, TextTable
from resolvent.tasks.text import Text, require_text
from resolvent.text import Reach, reach
from resolvent.train.record import Record
from resolvent.untrusted import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILE, _VERSION = "reach.json", 1
_CACHE = "n-gram cache"
STRUCTURES = ("attention", "dense", "first-order", "order:8", "exponential+cache", "quadratic+cache")


# What is measured


def measuring(cells: Sequence[Cell], _: Selection, out: Path) -> tuple[Measure, int]:
    """Shorter contexts, and the reach of the text. A text that is too short raises an error before anything is run."""
    contexts = lengths.shorter_contexts(cells[0])

    def measure(advance: Callable[[], None]) -> list[Record]:
        offered = _reach(require_text(cells[0].config.task), out)
        advance()
        return [
            dataclasses.replace(lengths.measured_on_same_targets(cell, advance), reach=offered)
            for cell in finished(cells)
        ]

    return measure, 1 + len(cells) * len(contexts)


def _reach(text: Text, out: Path) -> Reach:
    """That of the text in windows up to the context, measured once."""
    path, own = out / _FILE, {"version": _VERSION, "sha256": text.sha256, "context": text.context}
    if path.exists():
        content = as_mapping(read(path), "the reach of a text")
        if own == {key: content.get(key) for key in own}:
            return Reach.from_dict(content.get("reach"))
    require_writable(out)
    offered = reach(text.opened, text.context)
    write_text(path, json.dumps(own | {"reach": offered.to_dict()}, indent=1) + "\n")
    return offered


# What is shown


def gains(run: TextRun) -> dict[int, float]:
    """Nats per token that longer contexts gain over the shortest one, by context."""
    losses = {each.context: each.loss for each in run.lengths}
    return {context: losses[min(losses)] - loss for context, loss in losses.items()}


def gains_offered(variants: Sequence[Variant]) -> dict[int, float]:
    """Those of the n-gram cache, by window, from the shortest context of the models on; empty if not measured."""
    offered, contexts = variants[0].runs[0].record.reach, variants[0].lengths
    if offered is None or not contexts:
        return {}
    losses = {each.window: each.loss for each in offered.windows}
    return {w: losses[contexts[0]] - losses[w] for w in contexts if w in losses} if contexts[0] in losses else {}


def columns(variants: Sequence[Variant]) -> list[Column]:
    def at(context: int, *, brief: bool) -> Column:
        return Column(f"{context:,}", lambda v: spread(own, 2) if (own := v.at_length(context)) else "–", brief)

    contexts = variants[0].lengths
    costs = {column.name: column for column in table.pareto_columns(variants)}
    return [
        Column("structure", lambda v: v.name),
        dataclasses.replace(costs["params"], brief=False),
        dataclasses.replace(costs["mixing"], brief=False),
        costs["cache"],
        Column("learning rate", lambda v: f"{v.learning_rate:g}", brief=False),
        *(at(context, brief=context in (contexts[0], contexts[-1])) for context in contexts),
        Column("gain, nats", lambda v: spread([gains(run)[v.lengths[-1]] for run in v.runs], 3) if v.lengths else "–"),
        Column("all targets", lambda v: spread(v.perplexities, 2), brief=False),
        Column("bits per byte", lambda v: spread(v.bits, 3), brief=False),
    ]


def breakdown(variants: Sequence[Variant]) -> tuple[TextTable, ...]:
    """What each length of context gains over the shortest one, for each structure and for the n-gram cache."""
    contexts, offered = variants[0].lengths[1:], gains_offered(variants)
    head = ("gain in nats per token", *(f"{context:,}" for context in contexts))
    rows = [(v.name, *(spread([gains(run)[c] for run in v.runs], 3) for c in contexts)) for v in variants if v.lengths]
    cache = [(_CACHE, *(f"{offered[c]:.3f}" if c in offered else "–" for c in contexts))] if offered else []
    return (TextTable(head, (*rows, *cache)),) if rows else ()


def notes(variants: Sequence[Variant]) -> list[str]:
    offered, runs = variants[0].runs[0].record.reach, variants[0].runs
    epochs = runs[0].record.tokens / offered.trained if offered is not None else None
    of_text = f" {offered.reading}" if offered is not None else ""
    scored = runs[0].lengths[0].tokens if runs[0].lengths else 0
    return [
        "Mixing: multiply-adds per token along the sequence, forward, in all layers, mean over the context. Cache: of "
        "all layers for one sequence as long as the context, float32. Columns with a number: perplexity of the same "
        f"{scored:,} targets of the validation split, given so many tokens before them or up to 7 less. Gain: of their "
        "loss, from the shortest context to the longest. All targets: perplexity of all of the validation split in "
        "windows that do not overlap. Mean ± half the spread over seeds.",
        f"The {_CACHE} is a trigram model of the training split with what followed the same tokens within the last "
        f"tokens, on all targets of validation; its weights were fitted on one half and measured on the other.{of_text}"
        + ("" if epochs is None else f" Each run saw the training split {epochs:.1f} times."),
    ]


@final
@dataclass(frozen=True)
class UsesContext(OfOne[Variant]):
    """The longest context against the shortest: the same model on the same targets, seed by seed."""

    rule = (
        "Uses its context: for every seed the perplexity given the longest context is below that given the shortest by "
        f"more than {claims.MARGIN:.1%}, or {claims.SINGLE:.0%} for a single seed; contradicted if it is above by as "
        "much. All else is open."
    )

    def __str__(self) -> str:
        return f"{self.name} uses its context"

    def _grade(self, *run: Variant) -> Grade:
        (own,) = run
        gained = [gains(each)[own.context] for each in own.runs if own.context in gains(each)]
        return better(gained, [0.0] * len(gained), PERPLEXITY)


def statements(variants: Sequence[Variant]) -> list[TextStatement]:
    asked = "asked, not claimed: models make use of a context that is longer than the shortest"
    return [*claims.PARETO, *(UsesContext(asked, variant.name) for variant in variants)]


def ladder_figure(variants: Sequence[Variant]) -> Figure:
    """Loss given more and more context, what that gains beside the n-gram cache, and the losses during training."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    curves = any(map(_during_training, variants))
    figure = Figure(figsize=(15 if curves else 10.5, 4.6), layout="constrained")
    first, second, *others = figure.subplots(1, 3 if curves else 2)
    bands(first, variants, variants, lambda v: [(c, [_loss_at(run, c) for run in v.runs]) for c in v.lengths])
    gained = bands(second, variants, variants, lambda v: [(c, [gains(run)[c] for run in v.runs]) for c in v.lengths])
    if offered := gains_offered(variants):
        second.plot(list(offered), list(offered.values()), ":", color=PALE, lw=2, marker=".")
        gained.append((list(offered)[-1], list(offered.values())[-1], _CACHE, PALE))
    for axes in (first, second):
        axes.set_xscale("log", base=2)
        axes.set_xticks(variants[0].lengths, [f"{context:,}" for context in variants[0].lengths])
        axes.xaxis.minorticks_off()
    shortest = variants[0].lengths[0] if variants[0].lengths else 0
    label_axes(first, "tokens of context, the same targets", "loss, nats per token")
    label_axes(second, "tokens of context, the same targets", f"gain over {shortest} tokens, nats per token")
    end_labels(second, gained, size=7.5)
    for third in others:
        trained = bands(third, variants, variants, _during_training)
        label_axes(third, "million tokens trained on", "loss during training, nats per token")
        end_labels(third, trained, size=7.5)
    return figure


def _loss_at(run: TextRun, context: int) -> float:
    return next(each.loss for each in run.lengths if each.context == context)


def _during_training(variant: Variant) -> list[tuple[float, list[float]]]:
    """Losses of the seeds at each evaluation, after the first tenth, which would hide the rest."""
    rows = []
    for points in zip_longest(*(run.record.curve for run in variant.runs)):
        known = [point for point in points if point is not None]
        record = variant.runs[0].record
        if 10 * known[0].step >= record.steps:
            rows.append((known[0].step * record.tokens / record.steps / 1e6, [math.log(p.value) for p in known]))
    return rows


LADDER = TextStudy(
    name="ladder",
    title="what a longer context is worth",
    about="Six structures on text with long-range dependencies: the same targets given more and more context, beside "
    "the gain of an n-gram cache.",
    page="ladder.html",
    structures=STRUCTURES,
    columns=columns,
    notes=notes,
    statements=statements,
    figure=ladder_figure,
    caption="In the middle, what more context gains; dotted, what the text offers to a cache of n-grams.",
    measuring=measuring,
    breakdown=breakdown,
    presets=tuple((name, PRESETS[name].about) for name in ("python", *(n for n in PRESETS if n != "python"))),
)
