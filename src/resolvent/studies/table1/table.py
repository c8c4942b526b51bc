"""Table 1 from records: theory and accuracy of each structure, multi-hop accuracy by hops, and notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from resolvent.analysis.congestion import Congestion, Effort, congestion
from resolvent.analysis.profile import Profile, analyze, describe
from resolvent.batch import IGNORED, Batch
from resolvent.errors import SettingError
from resolvent.patterns import as_pattern
from resolvent.studies.grade import by_seed, mean
from resolvent.studies.study import TextTable, provenance
from resolvent.studies.table1.claims import PAPER
from resolvent.tasks.synthetic import Floor, Synthetic
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.record import Record

TASK_TITLES = {"copy": "copy", "recall": "recall", "multihop": "multi-hop"}
_QUERIES = "multihop queries"
_TITLES = TASK_TITLES | {_QUERIES: "multi-hop, queries"}
_GUESSES: dict[Floor, str] = {
    "constant": "guess: constant",
    "shown": "guess: shown",
    "commonest": "guess: commonest",
    "shortcut": "best shortcut",
}
_THEORY = ("structure", "reads", "cache", "hops", "congestion", "ms per 1k tokens")
_MANY_HOPS = 4
_SHORT = 128  # tokens up to which a search for routings takes no time


@dataclass(frozen=True)
class StructureResult:
    """A structure: what theory says of it at the longest sequence of the study, and the runs of each task.

    congestion    of copying half of that sequence into its other half
    milliseconds  per thousand tokens of training, the mean over all its runs
    """

    structure: str
    profile: Profile
    congestion: Congestion
    records: dict[str, list[Record]]  # task → its seeds in order
    milliseconds: float

    @property
    def scores(self) -> dict[str, list[float]]:
        """The accuracy of each seed, by task; of multi-hop also that of its queries alone."""
        scores = {task: [evaluation_of(r).accuracy for r in records] for task, records in self.records.items()}
        queries = [each for r in self.records.get("multihop", ()) if (each := _on_queries(r)) is not None]
        return scores | ({_QUERIES: queries} if queries else {})


def structure_results(records: Sequence[Record]) -> list[StructureResult]:
    """One for each structure, in the order of the records."""
    longest = max(record.config.task.longest for record in records)
    effort: Effort = "search" if longest <= _SHORT else "quick"
    grouped: dict[str, dict[str, list[Record]]] = {}
    for (structure, task), seeds in by_seed(records, lambda r: (structure_of(r), r.config.task.name)).items():
        grouped.setdefault(structure, {})[task] = seeds
    return [
        StructureResult(
            str(as_pattern(structure)),
            analyze(structure, longest, effort=effort),
            congestion(structure, longest // 2, effort),
            tasks,
            _milliseconds([record for seeds in tasks.values() for record in seeds]),
        )
        for structure, tasks in grouped.items()
    ]


def structure_of(record: Record) -> str:
    """The spelling of the pattern under study: that of the last layer, where the first has one of its own."""
    pattern = record.config.model.pattern
    return str(pattern[-1] if isinstance(pattern, tuple) else pattern)


def evaluation_of(record: Record) -> AccuracyEvaluation:
    if not isinstance(record.evaluation, AccuracyEvaluation):
        raise SettingError(f"expected records of copy, recall or multihop, got one of {record.config.task.name}.")
    return record.evaluation


def tasks_of(results: Sequence[StructureResult]) -> list[str]:
    return [task for task in TASK_TITLES if any(task in result.records for result in results)]


def table(results: Sequence[StructureResult]) -> TextTable:
    """Accuracy in %, ± half the spread over seeds; in brackets the paper's, at its own scale; below it, of guesses."""
    columns = [name for name in _TITLES if any(name in result.scores for result in results)]
    head = (*_THEORY, *(_TITLES[name] for name in columns))
    floors = {name: _floors(results, name) for name in columns}
    guesses = [
        (title, *[""] * (len(_THEORY) - 1), *(f"{100 * floors[name][floor]:.1f}" for name in columns))
        for floor, title in _GUESSES.items()
    ]
    return TextTable(head, (*(_cells(result, columns) for result in results), *guesses))


def brief(results: Sequence[StructureResult]) -> TextTable:
    """The same in 80 columns: with several tasks, accuracies take two lines, and speed is left out."""
    full = table(results)
    short = {
        "ms per 1k tokens": "ms per\n1k\ntokens",
        "multi-hop": "multi-\nhop",
        "multi-hop, queries": "queries\nalone",
    }
    head = tuple(short.get(name, name) for name in full.head)
    if len(tasks_of(results)) == 1:
        return TextTable(head, full.rows)
    rows = [head, *([cell.replace(" ± ", "±").replace(" (", "\n(") for cell in row] for row in full.rows)]
    speed = head.index(short["ms per 1k tokens"])
    first, *others = (tuple(cell for i, cell in enumerate(row) if i != speed) for row in rows)
    return TextTable(first, tuple(others))


def by_hops(results: Sequence[StructureResult]) -> TextTable | None:
    """Multi-hop accuracy by the number of pairs that have to be looked up, all seeds together."""
    rows = []
    for result in (each for each in results if "multihop" in each.records):
        sums = {hops: [0.0, 0.0] for hops in range(1, _MANY_HOPS + 1)}
        for record in result.records.get("multihop", ()):
            for each in evaluation_of(record).slices.get("hops", ()):
                sums[min(each.first, _MANY_HOPS)][0] += each.count
                sums[min(each.first, _MANY_HOPS)][1] += each.count * each.value
        shares = [f"{100 * correct / count:.1f}" if count else "" for count, correct in sums.values()]
        rows.append((result.structure, *shares))
    if not rows:
        return None
    hops = (*map(str, range(1, _MANY_HOPS)), f"{_MANY_HOPS} or more")
    return TextTable(("multi-hop, accuracy by hops", *hops), tuple(rows))


def notes(results: Sequence[StructureResult], records: Sequence[Record]) -> tuple[str, ...]:
    """What the columns mean, and how the records were made."""
    counts = {
        task: len({record.seed for record in records if record.config.task.name == task}) for task in tasks_of(results)
    }
    return (
        f"Reads, cache slots and hops are theory at n = {(n := results[0].profile.n):,}, the longest sequence; "
        f"congestion is that of copying {n // 2:,} tokens over {n // 2 * 2:,}. Accuracy: % of scored tokens, on "
        "held-out sequences of all sizes, mean ± half the spread over seeds. In brackets the paper's accuracy, at its "
        "own, larger scale.",
        "Guesses score what they would on the same sequences, in expectation: always one token, any of the values "
        f"shown so far, the commonest of them. Shortcuts: {_shortcuts(results)}.",
        f"Seeds: {', '.join(f'{task} {count}' for task, count in counts.items())}. Learning rate: {_rates(records)}. "
        f"{provenance(records)}",
    )


def best_guess(results: Sequence[StructureResult], task: str) -> float:
    """The highest accuracy of a guess that looks nothing up."""
    floors = _floors(results, task)
    return max(floors[name] for name in ("constant", "shown", "commonest"))


def _floors(results: Sequence[StructureResult], column: str) -> dict[Floor, float]:
    """What guesses score on the sequences that the first run of a task was measured on."""
    task = "multihop" if column == _QUERIES else column
    first = next(result.records[task][0] for result in results if task in result.records)
    settings = first.config.train
    return _held_out_floors(_synthetic(first), settings.seed, settings.batch, settings.eval_batches, column == _QUERIES)


@lru_cache(maxsize=32)
def _held_out_floors(task: Synthetic, seed: int, count: int, batches: int, queries: bool) -> dict[Floor, float]:
    held_out = task.held_out(seed, count, batches)
    return task.floors(_queries(held_out) if queries else held_out)


def _queries(batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        yield dataclasses.replace(batch, targets=np.where(batch.slices["query"] == 1, batch.targets, IGNORED))


def _on_queries(record: Record) -> float | None:
    """Accuracy where a key is asked for; None if the record does not say."""
    slices = evaluation_of(record).slices.get("query", ())
    return next((each.value for each in slices if each.first == 1), None)


def _shortcuts(results: Sequence[StructureResult]) -> str:
    first = {task: next(r.records[task][0] for r in results if task in r.records) for task in tasks_of(results)}
    return "; ".join(f"{TASK_TITLES[task]}, {_synthetic(record).shortcut}" for task, record in first.items())


def _synthetic(record: Record) -> Synthetic:
    task = record.config.task
    if not isinstance(task, Synthetic):
        raise SettingError(f"expected records of copy, recall or multihop, got one of {task.name}.")
    return task


def _milliseconds(records: Sequence[Record]) -> float:
    return 1e6 * sum(r.seconds for r in records) / max(sum(r.tokens for r in records), 1)


def _rates(records: Sequence[Record]) -> str:
    rates: dict[str, set[float]] = {}
    for record in records:
        rates.setdefault(str(as_pattern(structure_of(record))), set()).add(record.config.train.learning_rate)
    every = {rate for each in rates.values() for rate in each}
    if len(every) == 1:
        return str(every.pop())
    return "; ".join(f"{name} {', '.join(map(str, sorted(each)))}" for name, each in rates.items())


def _cells(result: StructureResult, tasks: Sequence[str]) -> tuple[str, ...]:
    p = result.profile
    return (
        result.structure,
        f"{p.reads_per_token.max:,}",
        f"{p.cache_slots:,}",
        "∞" if p.unreachable_pairs else f"{p.max_hops:,}",
        describe(result.congestion),
        f"{result.milliseconds:.0f}",
        *(_score(result, task) for task in tasks),
    )


def _score(result: StructureResult, task: str) -> str:
    values = result.scores.get(task)
    if not values:
        return "–"
    paper = PAPER.get((task, result.structure))
    return percent(values) + ("" if paper is None else f" ({100 * paper:.0f})")


def percent(values: Sequence[float]) -> str:
    """The mean over seeds in %, and half their spread."""
    spread = f" ± {50 * (max(values) - min(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"
