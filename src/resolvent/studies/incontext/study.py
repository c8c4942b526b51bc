"""The in-context study: what its records show, in tables beside exact readers, and what the paper says of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from resolvent.analysis.profile import describe
from resolvent.patterns import as_pattern
from resolvent.studies.grade import by_seed, mean
from resolvent.studies.incontext import figures, theory
from resolvent.studies.incontext.cells import PRESETS, cells
from resolvent.studies.incontext.results import (
    InContextResult,
    ReaderResult,
    Setting,
    by_role,
    evaluation_of,
    readers,
    results,
    setting_of,
    shares,
)
from resolvent.studies.language.claims import BAND, Compared, Curve, Most, rules
from resolvent.studies.language.table import spread
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
from resolvent.studies.table1.table import structure_of
from resolvent.tasks import Markov
from resolvent.tasks.markov import ORACLE, PAST
from resolvent.text.batches import perplexity
from resolvent.train.record import Record

Groups = Mapping[Setting, Sequence[InContextResult]]

_HEAD = ("structure", "reads", "cache", "hops", "congestion", "mixing", "params", "rate", "loss", "above floor",
         "perplexity", "share of the way")  # fmt: skip
_BRIEF = ("structure", "reads", "cache", "hops", "loss", "above floor", "perplexity", "share of the way")
_TITLES = {ORACLE: "reader: knows the chain", PAST: "reader: all of the past"}

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

Comparison = Compared | Curve | Most

_CACHE = ("exponential", "exponential+cache"), ("quadratic", "quadratic+cache")
_PAY = "asked, not claimed: fewer hops pay at the same cache"
_READS = "asked, not claimed: fewer hops pay at the same cache and the same reads"

_PAPER: tuple[Comparison, ...] = (
    Compared("§5.3: at O(n) the resolvent wins the bracket, surpassing attention", "dense", "attention"),
    Compared("§5.3: O(√n) gives the better results among sublinear designs", "quadratic", "exponential"),
    *(Compared("§5.3: cache-efficient variants always perform slightly worse", one, other) for one, other in _CACHE),
    *(Compared("§5.3: the gap of cache-efficient variants remains small", other, one, "close")
      for one, other in _CACHE),
    Compared("§5.3: local attention is largely beaten by its recurrent counterpart", "order:8", "local:8"),
    Compared("§5.3: first order still beats local attention", "first-order", "local:8"),
    *(Compared("§5.3: large gains occur when moving off O(1) to sublinear access", name, "first-order")
      for pair in _CACHE for name in pair),
    *(Most("§7: sublinear access captures most of the accuracy of dense mixing", name, "attention")
      for pair in _CACHE for name in pair),
    Curve("§5.3: the points trace a clear speed-accuracy Pareto curve",
          (("first-order",), *_CACHE, ("attention", "dense"))),
    *BAND,
)  # fmt: skip


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
            preset,
            out,
            structures=selection.structures,
            seeds=selection.seeds,
            first_seed=selection.first_seed,
            changes=selection.changes,
        )
        return StudyPlan(preset, about, out, chosen)

    def report(self, records: Sequence[Record]) -> StudyReport:
        if (rates := _by_rate(records)) is not None:
            caption = ("The least loss of each structure is marked.", provenance(records))
            return StudyReport((rates,), rates, caption, caption, Claims("", "", ()), ())
        groups = results(records)
        first, notes = next(iter(groups.values())), _notes(groups, records)
        several = [_by_setting(groups), _shares_by_setting(groups)] if len(groups) > 1 else []
        positions = [_by_position(group, setting if several else None) for setting, group in groups.items()]
        beside = (
            theory.reach_table(groups),
            theory.spectrum_table(first),
            theory.feedback_by_setting(groups),
            theory.fit_table(groups),
        )
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
            tables=(_table(first), *filter(None, (*several, *positions, *beside))),
            brief=_by_setting(groups) if several else _brief(first),
            captions=notes[:2],
            notes=(*notes, theory.NOTE),
            claims=_graded(groups),
            figures=tuple(drawn),
        )


# Tables


def _title_of(reader: str) -> str:
    return _TITLES.get(reader, f"reader: {reader} tokens")


def _table(group: Sequence[InContextResult]) -> TextTable:
    floor = group[0].evaluations[0].floor
    least = next(reader.loss for reader in readers(group) if reader.name == floor)
    rows = [_row(result, group) for result in group]
    rows += [_reader_row(reader, least) for reader in reversed(readers(group))]
    return TextTable(_HEAD, tuple(rows))


def _brief(group: Sequence[InContextResult]) -> TextTable:
    full, kept = _table(group), [_HEAD.index(name) for name in _BRIEF]
    rows = [tuple(row[i].replace(" ± ", "±") for i in kept) for row in full.rows]
    head = [name.replace("above ", "above\n").replace("share of ", "share of\n") for name in _BRIEF]
    return TextTable(tuple(head), tuple(rows))


def _by_position(group: Sequence[InContextResult], setting: Setting | None = None) -> TextTable:
    """The loss in each range of positions, mean over seeds; of one setting of several."""
    ranges = [f"{first:,}–{last:,}" for first, last in group[0].positions]
    rows = [(result.structure, *map(_nats, result.by_position)) for result in group]
    rows += [(_title_of(reader.name), *map(_nats, reader.by_position)) for reader in reversed(readers(group))]
    return TextTable(("loss by position" + (f", {setting}" if setting else ""), *ranges), tuple(rows))


def _by_setting(groups: Groups) -> TextTable:
    """Nats above the floor at each budget, beside how the reads and the cache of a structure grow."""
    rows = []
    for role, by_budget in by_role(groups).items():
        laws = next(each for each in by_budget if each is not None).growth
        rows.append((role, *laws, *("–" if each is None else spread(each.excesses, 3) for each in by_budget)))
    floors = {s: {reader.name: reader.loss for reader in readers(group)} for s, group in groups.items()}
    past = [floors[s][group[0].evaluations[0].floor] for s, group in groups.items()]
    rows.append(("the floor itself", "", "", *map(_nats, past)))
    return TextTable(("nats above the floor", "reads", "cache", *map(str, groups)), tuple(rows))


def _shares_by_setting(groups: Groups) -> TextTable | None:
    """How far structures go from first order to attention at each budget; None where neither was run."""
    rows = [
        (role, *("–" if each is None else _percent(shares(each, groups[each.setting])) for each in by_budget))
        for role, by_budget in by_role(groups).items()
    ]
    known = any(cell != "–" for _, *cells in rows for cell in cells)
    return TextTable(("share of the way", *map(str, groups)), tuple(rows)) if known else None


def _by_rate(records: Sequence[Record]) -> TextTable | None:
    """The loss at each learning rate, if a structure was trained with several; the least is marked."""
    if len({(structure_of(r), _rate_of(r)) for r in records}) == len({structure_of(r) for r in records}):
        return None
    losses: dict[str, dict[float, list[float]]] = {}
    for (structure, rate, _), seeds in by_seed(
        records, lambda r: (structure_of(r), _rate_of(r), setting_of(r))
    ).items():
        losses.setdefault(structure, {}).setdefault(rate, []).extend(evaluation_of(record).loss for record in seeds)
    rates = sorted({rate for each in losses.values() for rate in each})
    rows = []
    for structure, each in losses.items():
        best = min(each, key=lambda rate: mean(each[rate]))
        cells = [spread(each[rate], 4) + (" *" if rate == best else "") if rate in each else "–" for rate in rates]
        rows.append((structure, *cells))
    return TextTable(("loss by learning rate", *(f"{rate:g}" for rate in rates)), tuple(rows))


def _rate_of(record: Record) -> float:
    return record.config.train.learning_rate


def _notes(groups: Groups, records: Sequence[Record]) -> tuple[str, ...]:
    config, setting = records[0].config, next(iter(groups))
    task, train, seeds = config.task, config.train, sorted({record.seed for record in records})
    assert isinstance(task, Markov)
    documents = next(iter(groups.values()))[0].evaluations[0].documents
    error = max(each.excess_error for group in groups.values() for result in group for each in result.evaluations)
    chain = f"a hidden chain on {task.hidden} states" if task.hidden else f"a chain of order {task.order}"
    first = "the structure in both blocks" if setting.alone else "the first block local:2, the second the structure"
    return (
        f"Every document has {chain} with {task.k} tokens of its own, rows Dirichlet({task.alpha:g}); nothing can be "
        "learnt across documents but how to learn a chain from its walk. Losses are nats per token on "
        f"{documents:,} held-out documents for each seed, mean ± half the spread over seeds. Above floor: above the "
        f"loss of the reader of {'tokens that knows the chain, a lower bound' if task.hidden else 'all the past'} on "
        f"the same documents; its standard error over documents is at most {error:.4f} for one run. Readers of the "
        "last w tokens count in them alone, as if the document began there.",
        "Share of the way: from the loss of first order (0 %) to that of attention (100 %), seed by seed. Reads, cache "
        f"slots, hops and congestion are theory at n = {setting.context:,}; mixing is multiply-adds per token of the "
        "structure's layer.",
        f"Two blocks ({first}), dimension {config.model.dim}, {config.model.heads} heads; MLPs are as wide as gives "
        f"every structure the parameters of dense. {train.steps:,} steps of {train.batch} documents of "
        f"{task.context:,} tokens (the first budget, where there are several). Seeds {', '.join(map(str, seeds))}"
        f"{_runs_of_each(groups)}. {provenance(records)}",
    )


def _runs_of_each(groups: Groups) -> str:
    """How many seeds there are at each budget, where these differ."""
    most = {setting: max(len(result.records) for result in group) for setting, group in groups.items()}
    counts = "; ".join(f"{number} at {setting}" for setting, number in most.items())
    return f": {counts}" if len(set(most.values())) > 1 else ""


def _row(result: InContextResult, group: Sequence[InContextResult]) -> tuple[str, ...]:
    t, way = result.theory, shares(result, group)
    return (
        result.structure,
        f"{t.reads:,}",
        f"{t.cache_slots:,}",
        "∞" if math.isinf(t.max_hops) else f"{t.max_hops:,.0f}",
        describe(t.congestion),
        f"{t.madds:,.0f}",
        f"{result.parameters:,}",
        f"{result.learning_rate:g}",
        spread(result.losses, 3),
        spread(result.excesses, 3),
        spread(result.perplexities, 2),
        _percent(way),
    )


def _percent(values: Sequence[float]) -> str:
    """The mean over seeds in %, and half their spread; a dash for none."""
    if not values:
        return "–"
    half = f" ± {50 * (max(values) - min(values)):.0f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.0f}{half} %"


def _reader_row(reader: ReaderResult, least: float) -> tuple[str, ...]:
    blank = [""] * (len(_HEAD) - 5)
    above = f"{reader.loss - least:+.3f}" if reader.loss != least else "0"
    return (_title_of(reader.name), *blank, _nats(reader.loss), above, f"{perplexity(reader.loss):.2f}", "")


def _nats(value: float) -> str:
    return f"{value:.3f}"


# Claims


def _statements(context: int) -> list[Comparison]:
    """The paper's, and at the caches of this length those about hops."""
    asked: list[Comparison] = []
    for name in ("exponential+cache", "quadratic+cache"):
        size = as_pattern(name).slots(context)
        asked += [
            Compared(_PAY, f"binomial:{size},lazy", name),
            Compared(_PAY, f"binomial:{size}", name),
            Compared(_READS, f"binomial:{size},lazy", f"order:{size}"),
        ]
    return [*_PAPER, *asked]


def _graded(groups: Groups) -> Claims:
    """At every budget; named as at the first one, where caches of other lengths are others."""
    named = _statements(next(iter(groups)).context)
    made = []
    for setting, group in groups.items():
        by_name = {result.structure: result for result in group}
        name_of_setting = str(setting) if len(groups) > 1 else ""
        for name, each in zip(named, _statements(setting.context), strict=True):
            made.append(Graded(each.source, str(name), each.grade(by_name), name_of_setting))
    sizes = " Numbers of slots are those of the first column; elsewhere, those of the same caches are compared."
    others = sizes if len({setting.context for setting in groups}) > 1 else ""
    rule = f"Losses are compared above the floor on the same documents.{others} {rules(named)}"
    return Claims("What the paper says of text, graded on this language", rule, tuple(made))


INCONTEXT = InContextStudy(
    name="incontext",
    title="in-context Markov language",
    about="Documents each from their own Markov chain: loss against complexity, beside predictors with exact losses.",
    page="incontext.html",
)
