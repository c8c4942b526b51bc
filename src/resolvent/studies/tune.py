"""Learning rates by successive halving: short runs of all of them, then of the better half with twice the steps.

Every run of a rung has a schedule of its own, warm-up and decay to zero, so that complete runs are compared, and is a
cell of the grid: what is finished is read, and what is chosen follows from records alone. Of rates that come out alike
the smaller one goes on, and runs that diverge are worst. The last rung has two rates, and the better one wins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from resolvent.errors import SettingError
from resolvent.patterns import pattern
from resolvent.studies.engines import LOG
from resolvent.studies.grid import Cell, CellError, folder_of
from resolvent.train import metrics
from resolvent.train.config import RunConfig
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.metrics import read_metrics
from resolvent.train.record import Record

_DIVERGED = "DivergedError"  # as the last line of a log names it
_MARK = "diverged.txt"
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the preset's rate
_SHARE = 50  # of the preset's steps, in the first rung
_LEAST = 10  # steps
_WARMING = 4  # warm-up is a quarter of a run at most: a few steps made rates diverge that the preset's warm-up stands

Configure = Callable[[str, int], RunConfig]  # the settings of a run, by structure and seed
RunCells = Callable[[Sequence[Cell]], object]  # runs those that are not finished


@final
@dataclass(frozen=True)
class Sweep:
    """What is tried for each structure: these rates, for so many steps in the first rung, on these seeds."""

    rates: tuple[float, ...]
    steps: int
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.rates) < 2 or len(set(self.rates)) < len(self.rates):
            raise SettingError(f"expected two learning rates or more, each once, got {_spelled(self.rates)}.")
        if not all(0 < rate < math.inf for rate in self.rates):
            raise SettingError(f"expected learning rates > 0, got {_spelled(self.rates)}.")
        if self.steps < 1 or not self.seeds:
            raise SettingError(f"expected at least one step and one seed, got {self.steps} and {len(self.seeds)}.")

    @classmethod
    def around(cls, config: RunConfig, rates: Sequence[float] | None, steps: int | None, seeds: Sequence[int]) -> Sweep:
        """Around the settings of a preset, where nothing else is asked for."""
        preset = config.train
        usual = [float(f"{factor * preset.learning_rate:.3g}") for factor in _FACTORS]
        least = max(preset.steps // _SHARE, _LEAST)
        return cls(tuple(sorted(rates or usual)), least if steps is None else steps, tuple(seeds))

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """Rates and steps of each rung."""
        counts, steps = [len(self.rates)], self.steps
        while counts[-1] > 2:
            counts.append(-(-counts[-1] // 2))
        return [(count, steps << rung) for rung, count in enumerate(counts)]


@final
@dataclass(frozen=True)
class Trial:
    """A rate of a structure in a rung, with the runs of its seeds; None for those that diverged."""

    structure: str
    rate: float
    steps: int
    cells: tuple[Cell, ...]
    records: tuple[Record | None, ...]

    @property
    def score(self) -> tuple[float, ...]:
        """Larger where better: means over seeds."""
        finished = [_score(record) for record in self.records if record is not None]
        if len(finished) < len(self.records):
            return (-math.inf,)
        return tuple(sum(values) / len(values) for values in zip(*finished, strict=True))

    @property
    def value(self) -> float | None:
        """Accuracy or perplexity, of the mean score; None if it diverged."""
        records = [record for record in self.records if record is not None]
        if len(records) < len(self.records):
            return None
        return self.score[0] if isinstance(records[0].evaluation, AccuracyEvaluation) else math.exp(-self.score[0])

    @property
    def cost(self) -> tuple[int, float]:
        """Tokens, and seconds of one core."""
        tokens, seconds = 0, 0.0
        for cell, record in zip(self.cells, self.records, strict=True):
            settings = cell.config.train
            if record is not None:
                tokens, seconds = tokens + record.tokens, seconds + record.seconds * settings.threads
            elif logged := read_metrics(cell.folder / metrics.FILE):
                tokens += logged[-1].step * settings.batch * cell.config.task.longest
                seconds += logged[-1].seconds * settings.threads
        return tokens, seconds


@final
@dataclass(frozen=True)
class Tuning:
    """What came out: all trials, rung by rung."""

    sweep: Sweep
    trials: tuple[Trial, ...]

    @property
    def structures(self) -> list[str]:
        return list(dict.fromkeys(trial.structure for trial in self.trials))

    def of(self, structure: str, rate: float) -> Trial:
        """The longest trial of a rate."""
        own = [trial for trial in self.trials if (trial.structure, trial.rate) == (structure, rate)]
        return max(own, key=lambda trial: trial.steps)

    @property
    def winners(self) -> dict[str, float]:
        """The best rate of each structure. One of which all runs diverged raises an error."""
        last = {s: max(t.steps for t in self.trials if t.structure == s) for s in self.structures}
        finals = {s: [t for t in self.trials if (t.structure, t.steps) == (s, last[s])] for s in self.structures}
        best = {structure: _best(trials)[0] for structure, trials in finals.items()}
        for structure, trial in best.items():
            if trial.value is None:
                raise SettingError(
                    f"{structure} diverged with every learning rate of {_spelled(self.sweep.rates)}: expected smaller "
                    "--rates, or a longer train.warmup."
                )
        return {structure: trial.rate for structure, trial in best.items()}

    @property
    def at_the_edge(self) -> list[str]:
        """Structures whose best rate is the least or the largest that was tried."""
        ends = (min(self.sweep.rates), max(self.sweep.rates))
        return [structure for structure, rate in self.winners.items() if rate in ends]

    @property
    def cost(self) -> tuple[int, float]:
        """Tokens, and seconds of one core, of all trials."""
        tokens, seconds = zip(*(trial.cost for trial in self.trials), strict=True)
        return sum(tokens), sum(seconds)


def tune(structures: Sequence[str], configure: Configure, sweep: Sweep, out: Path, run: RunCells) -> Tuning:
    """Run the sweep of every structure, rung by rung; all structures of a rung at once."""
    names = list(dict.fromkeys(pattern(structure).spelling for structure in structures))
    left = dict.fromkeys(names, sweep.rates)
    trials: list[Trial] = []
    for count, steps in sweep.rungs:
        cells = {
            (structure, rate): [_cell(configure(structure, seed), structure, rate, steps, out) for seed in sweep.seeds]
            for structure in names
            for rate in left[structure][:count]
        }
        _run([cell for each in cells.values() for cell in each], run)
        rung = [
            Trial(str(pattern(structure)), rate, steps, tuple(own), tuple(cell.record() for cell in own))
            for (structure, rate), own in cells.items()
        ]
        trials += rung
        for structure in names:
            own = _best([trial for trial in rung if trial.structure == str(pattern(structure))])
            left[structure] = tuple(trial.rate for trial in own)
    return Tuning(sweep, tuple(trials))


def _best(trials: Sequence[Trial]) -> list[Trial]:
    """The best first; of those alike, the smallest rate."""
    return sorted(sorted(trials, key=lambda trial: trial.rate), key=lambda trial: trial.score, reverse=True)


def _cell(config: RunConfig, structure: str, rate: float, steps: int, out: Path) -> Cell:
    """A run of a rung: as much of the preset's warm-up as fits its share, and decay to zero."""
    settings = config.train
    warmup = min(settings.warmup, steps // _WARMING)
    train = dataclasses.replace(settings, steps=steps, warmup=warmup, learning_rate=rate, eval_every=steps)
    return Cell(
        config.task.name,
        f"{pattern(structure)} · {rate:g}",
        settings.seed,
        dataclasses.replace(config, train=train),
        folder_of(out / "runs", structure) / f"rate{rate:g}" / f"steps{steps}" / f"seed{settings.seed}",
    )


def _run(cells: Sequence[Cell], run: RunCells) -> None:
    """Run what is missing. A run that diverged is marked, and not run again; any other failure is raised."""
    try:
        run([cell for cell in cells if not (cell.folder / _MARK).exists()])
    except CellError:
        failed = [cell for cell in cells if cell.record() is None and not (cell.folder / _MARK).exists()]
        reasons = {cell: _last_line(cell.folder / LOG) for cell in failed}
        for cell, reason in reasons.items():
            if _DIVERGED in reason:
                (cell.folder / _MARK).write_text(reason + "\n", encoding="utf-8")
        if not all(_DIVERGED in reason for reason in reasons.values()):
            raise


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


def _score(record: Record) -> tuple[float, ...]:
    """Accuracies, then how soon the task was solved; minus the loss on text and on documents."""
    evaluation = record.evaluation
    if isinstance(evaluation, AccuracyEvaluation):
        return evaluation.accuracy, evaluation.sequence_accuracy, -float(record.steps)
    return (-evaluation.loss if math.isfinite(evaluation.loss) else -math.inf,)


def _spelled(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or "none"
