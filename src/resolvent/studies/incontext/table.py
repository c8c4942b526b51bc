"""Tables of the in-context study: losses beside exact readers, by position, by budget, and by learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resolvent.analysis.profile import describe
from resolvent.studies.grade import by_seed, mean
from resolvent.studies.incontext.results import (
    InContextResult,
    ReaderResult,
    Setting,
    by_role,
    evaluation_of,
    readers,
    setting_of,
    shares,
)
from resolvent.studies.language.table import spread
from resolvent.studies.study import TextTable, provenance
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


def title_of(reader: str) -> str:
    """A reader as tables name it."""
    return _TITLES.get(reader, f"reader: {reader} tokens")


def table(group: Sequence[InContextResult]) -> TextTable:
    """Structures, then readers."""
    floor = group[0].evaluations[0].floor
    least = next(reader.loss for reader in readers(group) if reader.name == floor)
    rows = [_row(result, group) for result in group]
    rows += [_reader_row(reader, least) for reader in reversed(readers(group))]
    return TextTable(_HEAD, tuple(rows))


def brief(group: Sequence[InContextResult]) -> TextTable:
    """In 80 columns."""
    full, kept = table(group), [_HEAD.index(name) for name in _BRIEF]
    rows = [tuple(row[i].replace(" ± ", "±") for i in kept) for row in full.rows]
    head = [name.replace("above ", "above\n").replace("share of ", "share of\n") for name in _BRIEF]
    return TextTable(tuple(head), tuple(rows))


def by_position(group: Sequence[InContextResult], setting: Setting | None = None) -> TextTable:
    """The loss in each range of positions, mean over seeds; of one setting of several."""
    ranges = [f"{first:,}–{last:,}" for first, last in group[0].positions]
    rows = [(result.structure, *map(_nats, result.by_position)) for result in group]
    rows += [(title_of(reader.name), *map(_nats, reader.by_position)) for reader in reversed(readers(group))]
    return TextTable(("loss by position" + (f", {setting}" if setting else ""), *ranges), tuple(rows))


def by_setting(groups: Groups) -> TextTable:
    """Nats above the floor at each budget, beside how the reads and the cache of a structure grow."""
    rows = []
    for role, by_budget in by_role(groups).items():
        laws = next(each for each in by_budget if each is not None).growth
        rows.append((role, *laws, *("–" if each is None else spread(each.excesses, 3) for each in by_budget)))
    floors = {s: {reader.name: reader.loss for reader in readers(group)} for s, group in groups.items()}
    past = [floors[s][group[0].evaluations[0].floor] for s, group in groups.items()]
    rows.append(("the floor itself", "", "", *map(_nats, past)))
    return TextTable(("nats above the floor", "reads", "cache", *map(str, groups)), tuple(rows))


def shares_by_setting(groups: Groups) -> TextTable | None:
    """How far structures go from first order to attention at each budget; None where neither was run."""
    rows = [
        (role, *("–" if each is None else percent(shares(each, groups[each.setting])) for each in by_budget))
        for role, by_budget in by_role(groups).items()
    ]
    known = any(cell != "–" for _, *cells in rows for cell in cells)
    return TextTable(("share of the way", *map(str, groups)), tuple(rows)) if known else None


def by_rate(records: Sequence[Record]) -> TextTable | None:
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


def notes(groups: Groups, records: Sequence[Record]) -> tuple[str, ...]:
    """What the columns mean, and how the records were made."""
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
        percent(way),
    )


def percent(values: Sequence[float]) -> str:
    """The mean over seeds in %, and half their spread; a dash for none."""
    if not values:
        return "–"
    half = f" ± {50 * (max(values) - min(values)):.0f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.0f}{half} %"


def _reader_row(reader: ReaderResult, least: float) -> tuple[str, ...]:
    blank = [""] * (len(_HEAD) - 5)
    above = f"{reader.loss - least:+.3f}" if reader.loss != least else "0"
    return (title_of(reader.name), *blank, _nats(reader.loss), above, f"{perplexity(reader.loss):.2f}", "")


def _nats(value: float) -> str:
    return f"{value:.3f}"
