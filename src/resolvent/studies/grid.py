"""A grid of runs: each cell in a process of its own, several at once. Finished cells are read; others resume.

No torch before anything is run: tables and figures of finished grids need none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from resolvent import disk_cache
from resolvent.errors import RunError, SettingError
from resolvent.files import require_writable
from resolvent.kernels import process
from resolvent.patterns import as_pattern
from resolvent.train import metrics, record
from resolvent.train.config import RunConfig
from resolvent.train.metrics import read_metrics
from resolvent.train.record import Record

_PAUSE = 0.2  # seconds between polls of the processes
_LOG = "log.txt"
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
    """The folder of a structure's runs: safe on every file system, short, and its own.

    Runs of earlier versions stay where they are: their folders have the spelling as it is.
    """
    label = str(as_pattern(structure))
    former = parent / label
    if "/" not in label and len(label) <= _LONGEST_NAME and former.exists():
        return former
    readable = re.sub(r"[^A-Za-z0-9.=@+,-]", "_", label.replace("/", "__"))
    if label.replace("/", "__").replace(":", "_") != readable or len(label) > _LONGEST_NAME:
        digest = hashlib.sha256(label.encode()).hexdigest()[:8]  # others may read the same
        readable = f"{readable[:_LONGEST_NAME]}-{digest}"
    return parent / readable


def run(cells: Sequence[Cell], jobs: int, on_progress: OnGridProgress = lambda *_: None) -> list[Record]:
    """The records of all cells; those not yet finished are run, `jobs` at a time. If interrupted, call it again.

    A cell uses as many threads as its config says, so that its numbers do not depend on `jobs`. Where there are GPUs,
    each running cell has one to itself. When a cell fails the others finish first, and their records are kept.
    """
    if jobs < 1:
        raise SettingError(f"expected at least one job, got {jobs}.")
    gpus = _gpus()
    slots = list(range(min(jobs, len(gpus) or jobs)))
    waiting = [cell for cell in cells if cell.record() is None]
    finished, failed = len(cells) - len(waiting), []
    running: dict[Cell, tuple[subprocess.Popen[bytes], int]] = {}
    try:
        while waiting or running:
            while waiting and slots:
                cell, slot = waiting.pop(0), slots.pop(0)
                running[cell] = _start(cell, gpus[slot] if gpus else None), slot
            time.sleep(_PAUSE)
            for cell, (process, slot) in list(running.items()):
                if process.poll() is not None:
                    del running[cell]
                    slots.append(slot)
                    finished += 1
                    if process.returncode:
                        failed.append(cell)
            on_progress([_progress(cell) for cell in running], finished)
    finally:
        for process, _ in running.values():
            process.terminate()
    if failed:
        reasons = "; ".join(f"{cell.name} failed: {_reason(cell)}" for cell in failed)
        raise CellError(f"{reasons}. Finished cells are kept; rerun the same command to resume the others.")
    return [result for cell in cells if (result := cell.record()) is not None]


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    return given.split(",")[: len(numbers)] if given and numbers else numbers


def _start(cell: Cell, gpu: str | None) -> subprocess.Popen[bytes]:
    require_writable(cell.folder)
    (cell.folder / "config.json").write_text(json.dumps(cell.config.to_dict(), indent=1), encoding="utf-8")
    threads = str(cell.config.train.threads)
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    with (cell.folder / _LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "resolvent.studies.cell", str(cell.folder), str(os.getpid())],
            stdout=log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip


def _progress(cell: Cell) -> CellProgress:
    """From the lines that the cell has logged."""
    logged = read_metrics(cell.folder / metrics.FILE)
    if not logged:
        return CellProgress(cell)
    values = [line.value for line in logged if line.value is not None]
    return CellProgress(cell, logged[-1].step, logged[-1].loss, values[-1] if values else None)


def _reason(cell: Cell) -> str:
    """The last line of its output."""
    log = cell.folder / _LOG
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith((disk_cache.NOTICE, process.COMPILING))
    ]
    full = shutil.disk_usage(cell.folder).free < _MIN_FREE
    reason = lines[-1] if lines else "the disk is full" if full else "killed"
    return f"{reason} (see {log})"
