"""Records of the in-context Markov language, by budget and structure: what each costs, and how well it predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from resolvent.analysis import cost, growth, hops
from resolvent.analysis.congestion import Congestion, congestion
from resolvent.errors import SettingError, shortened
from resolvent.patterns import PAPER_STRUCTURES, Pattern, as_pattern
from resolvent.studies.grade import by_seed, mean
from resolvent.studies.incontext.cells import K
from resolvent.studies.table1.table import structure_of
from resolvent.tasks import Markov
from resolvent.train.evaluations import DocumentEvaluation
from resolvent.train.record import Record

_CACHED = ("exponential+cache", "quadratic+cache")


class Setting(NamedTuple):
    """What runs must share to be compared."""

    context: int
    steps: int
    alone: bool
    k: int = K

    def __str__(self) -> str:
        others = (", no local:2" if self.alone else "") + (f", k = {self.k}" if self.k != K else "")
        return f"{self.context:,} tokens, {self.steps:,} steps{others}"


@dataclass(frozen=True)
class Theory:
    """What is known of a structure without training it.

    reads       past positions that a token reads, at most and on average
    max_hops    infinite where some pairs have no path
    mean_hops   over all pairs; those without a path count as n hops, more than any path has
    congestion  of copying n tokens
    madds       multiply-adds of mixing per token
    """

    reads: int
    mean_reads: float
    cache_slots: int
    max_hops: float
    mean_hops: float
    congestion: Congestion
    madds: float


@lru_cache(maxsize=256)
def _theory(structure: str, n: int, heads: int, head_dim: int) -> Theory:
    pattern, paths, pairs = as_pattern(structure), hops(structure, n), n * (n - 1) / 2
    lost = paths.unreachable_pairs
    return Theory(
        reads=pattern.widest_row(n),
        mean_reads=pattern.total_reads(n) / n,
        cache_slots=pattern.slots(n),
        max_hops=math.inf if lost else paths.max,
        mean_hops=(paths.mean * (pairs - lost) + n * lost) / pairs,
        congestion=congestion(structure, n, "quick"),
        madds=cost(pattern, n, heads=heads, head_dim=head_dim).forward_madds_per_token,
    )


@dataclass(frozen=True)
class InContextResult:
    """A structure at one budget, with the runs of its seeds, in order."""

    setting: Setting
    structure: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return self.structure

    @cached_property
    def pattern(self) -> Pattern:
        return as_pattern(self.structure)

    @property
    def role(self) -> str:
        """Its name, or that of what it is beside a cache-efficient one: the same at every length.

        The paper's own are themselves: order:8 is a band of eight, also where another has eight slots.
        """
        family, _, arguments = self.structure.partition(":")
        size, _, lazy = arguments.partition(",")
        if self.structure in PAPER_STRUCTURES or family not in ("binomial", "order"):
            return self.structure
        same = [name for name in _CACHED if as_pattern(name).slots(self.setting.context) == int(size)]
        return f"{family}{' ' + lazy if lazy else ''}, cache of {same[0]}" if same else self.structure

    @property
    def growth(self) -> tuple[str, str]:
        """How the reads per token and the cache grow with the length; what has the cache of another grows as that."""
        _, beside, other = self.role.partition(", cache of ")
        laws = growth(as_pattern(other if beside else self.structure))
        return laws.cache_slots if beside else laws.reads_per_token, laws.cache_slots

    @property
    def theory(self) -> Theory:
        """Of its layer, at the length of the documents."""
        model = self.records[0].config.model
        return _theory(self.structure, self.setting.context, model.heads, model.dim // model.heads)

    @property
    def evaluations(self) -> list[DocumentEvaluation]:
        return [evaluation_of(record) for record in self.records]

    @property
    def losses(self) -> list[float]:
        return [each.loss for each in self.evaluations]

    @property
    def excesses(self) -> list[float]:
        """Nats above the floor on the same documents, of each seed."""
        return [each.excess for each in self.evaluations]

    @property
    def scores(self) -> list[float]:
        """Of each seed, larger where better: differences are ratios of perplexities on the same documents."""
        return [-excess for excess in self.excesses]

    @property
    def perplexities(self) -> list[float]:
        return [each.perplexity for each in self.evaluations]

    @property
    def parameters(self) -> int:
        return self.records[0].parameters

    @property
    def learning_rate(self) -> float:
        return self.records[0].config.train.learning_rate

    @property
    def milliseconds(self) -> float:
        """Of training, per thousand tokens, of the quickest seed: whatever else runs can only slow one down."""
        return min(1e6 * record.seconds / max(record.tokens, 1) for record in self.records)

    @cached_property
    def positions(self) -> list[tuple[int, int]]:
        """First and last of each range of positions."""
        return [(each.first, each.last) for each in self.evaluations[0].by_position]

    @cached_property
    def by_position(self) -> list[float]:
        """The loss in each range, mean over seeds."""
        columns = zip(*(each.by_position for each in self.evaluations), strict=True)
        return [mean([piece.value for piece in column]) for column in columns]


@dataclass(frozen=True)
class ReaderResult:
    """A reader whose predictions are exact, on the documents of all seeds."""

    name: str
    loss: float
    by_position: tuple[float, ...]


def results(records: Sequence[Record]) -> dict[Setting, list[InContextResult]]:
    """By setting, one for each structure, in the order of the records."""
    chains = {(_task(record).alpha, _task(record).order, _task(record).hidden) for record in records}
    if len(chains) > 1:
        raise SettingError(
            f"losses on different chains cannot be compared: expected one alpha, order and hidden in all records, "
            f"got {', '.join(map(str, sorted(chains)))}."
        )
    made: dict[Setting, list[InContextResult]] = {}
    for (setting, structure), runs in by_seed(records, _place_of).items():
        group = made.setdefault(setting, [])
        _check_measured_alike(setting, runs, group[0].records[0] if group else runs[0])
        group.append(InContextResult(setting, structure, tuple(runs)))
    return made


def _place_of(record: Record) -> tuple[Setting, str]:
    return setting_of(record), str(as_pattern(structure_of(record)))


def by_role(groups: Mapping[Setting, Sequence[InContextResult]]) -> dict[str, list[InContextResult | None]]:
    """Of each role the result at every budget; None where it was not run."""
    roles = dict.fromkeys(result.role for group in groups.values() for result in group)
    return {role: [next((r for r in group if r.role == role), None) for group in groups.values()] for role in roles}


def _check_measured_alike(setting: Setting, runs: Sequence[Record], first: Record) -> None:
    """The same ranges of positions and the same readers, or they cannot stand in one table."""
    expected = _measured(evaluation_of(first))
    for record in runs:
        if (measured := _measured(evaluation_of(record))) != expected:
            raise SettingError(
                f"runs at {setting} were measured in different ways: expected {shortened(expected)}, got "
                f"{shortened(measured)} of seed {record.seed}."
            )


def _measured(evaluation: DocumentEvaluation) -> tuple[object, ...]:
    rows = {"": evaluation.by_position} | {name: reader.by_position for name, reader in evaluation.readers.items()}
    ranges = {tuple((piece.first, piece.last) for piece in pieces) for pieces in rows.values()}
    return evaluation.floor, sorted(rows), sorted(ranges), len(evaluation.hop_spectrum)


def readers(group: Sequence[InContextResult]) -> list[ReaderResult]:
    """Those of the records, each the mean over all seeds, from the least loss on."""
    by_seed = {record.seed: evaluation_of(record) for result in group for record in result.records}
    made = []
    for name in next(iter(by_seed.values())).readers:
        each = [evaluation.readers[name] for evaluation in by_seed.values()]
        columns = zip(*(reader.by_position for reader in each), strict=True)
        pieces = tuple(mean([piece.value for piece in column]) for column in columns)
        made.append(ReaderResult(name, mean([reader.loss for reader in each]), pieces))
    return sorted(made, key=lambda reader: reader.loss)


def shares(result: InContextResult, group: Sequence[InContextResult]) -> list[float]:
    """How far each seed goes from first order to attention with that seed, of the loss.

    Empty if they were not run; without the seeds with which attention is no better, where there is no way to go.
    """
    ends = {each.structure: dict(zip(_seeds(each), each.excesses, strict=True)) for each in group}
    if "first-order" not in ends or "attention" not in ends:
        return []
    made = []
    for seed, excess in zip(_seeds(result), result.excesses, strict=True):
        start, end = (ends[name].get(seed) for name in ("first-order", "attention"))
        if start is not None and end is not None and start > end:
            made.append((start - excess) / (start - end))
    return made


def setting_of(record: Record) -> Setting:
    pattern = record.config.model.pattern
    alone = not isinstance(pattern, tuple) or len(set(pattern)) == 1
    return Setting(_task(record).context, record.config.train.steps, alone, _task(record).k)


def evaluation_of(record: Record) -> DocumentEvaluation:
    if not isinstance(record.evaluation, DocumentEvaluation):
        raise SettingError(f"expected records of markov, got one of {record.config.task.name}.")
    return record.evaluation


def _task(record: Record) -> Markov:
    if not isinstance(record.config.task, Markov):
        raise SettingError(f"expected records of markov, got one of {record.config.task.name}.")
    return record.config.task


def _seeds(result: InContextResult) -> list[int]:
    return [record.seed for record in result.records]
