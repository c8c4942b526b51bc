"""A grid of runs: each cell in a process of its own, several at once, here or on a cluster.

Finished cells are read; others resume. The folders of the cells are all that the processes share.

No torch before anything is run: tables and figures of finished grids need none.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from resolvent import disk_cache
from resolvent.errors import RunError, SettingError
from resolvent.files import require_writable, write_text
from resolvent.kernels import process
from resolvent.patterns import as_pattern
from resolvent.studies.engines import LOG, Engine, Job, LocalEngine
from resolvent.train import metrics, record
from resolvent.train.config import RunConfig
from resolvent.train.metrics import read_metrics
from resolvent.train.record import Record

_PAUSE = 0.2  # seconds between polls of the processes
_LONGEST_NAME = 80  # of a folder
_MIN_FREE = 1 << 20  # bytes of free disk with which no cell gets far


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a study: what tells it from others, what is run, and the folder it lives in."""

    task: str
    structure: str
    seed: int
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.task} · {self.structure} · seed {self.seed}"

    def record(self) -> Record | None:
        """Its record, if it is finished. One that was run with other settings raises an error."""
        path = self.folder / record.FILE
        if not path.exists():
            return None
        finished = Record.read(path)
        if different := self.config.differences(finished.config):
            raise SettingError(
                f"{path} was run with other settings ({different}): expected another --out folder, or move that run "
                "away."
            )
        return finished


@dataclass(frozen=True)
class CellProgress:
    """How far a running cell is; the value is its accuracy or perplexity at the last evaluation."""

    cell: Cell
    step: int = 0
    loss: float | None = None
    value: float | None = None


OnGridProgress = Callable[[list[CellProgress], int], None]  # of the running cells, and how many are finished


class CellError(RunError):
    """A cell that failed; its output is in its log."""


def slug(setting: str) -> str:
    """A setting as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.=@-]+", "_", setting)


def folder_of(parent: Path, structure: str) -> Path:
    """The folder of a structure's runs: safe on every file system, short, and its own."""
    label = str(as_pattern(structure))
    readable = re.sub(r"[^A-Za-z0-9.=@+,-]", "_", label.replace("/", "__"))
    if label.replace("/", "__").replace(":", "_") != readable or len(label) > _LONGEST_NAME:
        digest = hashlib.sha256(label.encode()).hexdigest()[:8]  # others may read the same
        readable = f"{readable[:_LONGEST_NAME]}-{digest}"
    return parent / readable


def finished(cells: Sequence[Cell]) -> list[Cell]:
    """Those that have a record."""
    return [cell for cell in cells if cell.record() is not None]


def adopt(cells: Sequence[Cell], records: Sequence[Record]) -> None:
    """Cells that are not finished take the record of a run with the same settings, wherever that was made."""
    for cell in cells:
        same = next((each for each in records if not cell.config.differences(each.config)), None)
        if same is not None and cell.record() is None:
            require_writable(cell.folder)
            same.write(cell.folder / record.FILE)


def run(
    cells: Sequence[Cell],
    jobs: int | None = None,
    on_progress: OnGridProgress = lambda *_: None,
    engine: Callable[[], Engine] = LocalEngine,
) -> list[Record]:
    """The records of all cells; those not yet finished are run, `jobs` at a time. If interrupted, call it again.

    A cell uses as many threads as its config says, so that its numbers do not depend on `jobs` or the engine, which is
    made only if there is something to run. When a cell fails the others finish first, and their records are kept.
    """
    if jobs is not None and jobs < 1:
        raise SettingError(f"expected at least one job, got {jobs}.")
    waiting = [cell for cell in cells if cell.record() is None]
    if waiting:
        with closing(engine()) as started:
            _run(waiting, started.jobs(jobs, len(waiting)), started, len(cells), on_progress)
    return [result for cell in cells if (result := cell.record()) is not None]


def _run(waiting: list[Cell], jobs: int, engine: Engine, total: int, on_progress: OnGridProgress) -> None:
    running: dict[Cell, Job] = {}
    failed: list[Cell] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[cell] = _start(cell, engine)
            time.sleep(_PAUSE)
            for cell, job in list(running.items()):
                status = job.poll()
                if status is not None:
                    del running[cell]
                    failed += [cell] if status else []
            on_progress([_progress(cell) for cell in running], total - len(waiting) - len(running))
    finally:
        for job in running.values():
            job.terminate()
    if failed:
        reasons = "; ".join(f"{cell.name} failed: {_reason(cell)}" for cell in failed)
        raise CellError(f"{reasons}. Finished cells are kept; rerun the same command to resume the others.")


def _start(cell: Cell, engine: Engine) -> Job:
    require_writable(cell.folder)
    write_text(cell.folder / "config.json", json.dumps(cell.config.to_dict(), indent=1))
    return engine.start(cell.folder.absolute(), cell.config.train.threads)


def _progress(cell: Cell) -> CellProgress:
    logged = read_metrics(cell.folder / metrics.FILE)
    if not logged:
        return CellProgress(cell)
    values = [line.value for line in logged if line.value is not None]
    return CellProgress(cell, logged[-1].step, logged[-1].loss, values[-1] if values else None)


def _reason(cell: Cell) -> str:
    log = cell.folder / LOG
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith((disk_cache.NOTICE, process.COMPILING))
    ]
    full = shutil.disk_usage(cell.folder).free < _MIN_FREE
    reason = lines[-1] if lines else "the disk is full" if full else "killed"
    return f"{reason} (see {log})"
