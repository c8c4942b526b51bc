"""A grid of runs: each cell in a process of its own, several at once, none twice, whatever is killed when."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resolvent.patterns.errors import RunError
from resolvent.train import RunConfig, record
from resolvent.train.loop import METRICS, RECORD

_PAUSE = 0.2  # seconds between looks at the processes
_LITTLE = 1 << 20  # bytes of free disk with which no cell gets far


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a study: where it stands in the grid, what is run, and the folder it lives in."""

    task: str
    structure: str
    seed: int
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.task} · {self.structure} · seed {self.seed}"

    def done(self) -> dict[str, Any] | None:
        """Its record, if it has been run with these very settings."""
        path = self.folder / RECORD
        if not path.exists():
            return None
        found = record.read(path)
        if other := self.config.differences(found["config"]):
            raise ValueError(
                f"{path} was run with other settings ({other}): expected another --out folder, or move that run away."
            )
        return found


@dataclass(frozen=True)
class Standing:
    """How far a running cell is."""

    cell: Cell
    step: int
    loss: float | None
    found: float | None  # accuracy, or perplexity, at its last evaluation


def slug(setting: str) -> str:
    """A setting as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.=@-]+", "_", setting)


class CellError(RunError):
    """A cell that failed; what it said is in its log."""


def run(
    cells: Sequence[Cell], jobs: int, watch: Callable[[list[Standing], int], None] = lambda *_: None
) -> list[dict[str, Any]]:
    """The records of all cells; those not yet finished are run, `jobs` at a time. Killed, it goes on where it was.

    A cell uses as many threads as its config says, so that its numbers do not depend on `jobs`. Where there are GPUs,
    each cell at work has one to itself. When a cell fails the others finish first; what they found is kept.
    """
    if jobs < 1:
        raise ValueError(f"expected at least one job, got {jobs}.")
    places = list(range(min(jobs, torch.cuda.device_count() or jobs)))
    waiting = [cell for cell in cells if cell.done() is None]
    finished, failed = len(cells) - len(waiting), []
    running: dict[Cell, tuple[subprocess.Popen[bytes], int]] = {}
    try:
        while waiting or running:
            while waiting and places:
                cell, place = waiting.pop(0), places.pop(0)
                running[cell] = _start(cell, place), place
            time.sleep(_PAUSE)
            for cell, (process, place) in list(running.items()):
                if process.poll() is not None:
                    del running[cell]
                    places.append(place)
                    finished += 1
                    if process.returncode:
                        failed.append(cell)
            watch([_standing(cell) for cell in running], finished)
    finally:
        for process, _ in running.values():
            process.terminate()
    if failed:
        said = "; ".join(f"{cell.name} failed: {_last_words(cell)}" for cell in failed)
        raise CellError(f"{said}. Finished cells are kept; the same command goes on with the others.")
    return [found for cell in cells if (found := cell.done()) is not None]


def _start(cell: Cell, place: int) -> subprocess.Popen[bytes]:
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "config.json").write_text(json.dumps(cell.config.to_dict(), indent=1))
    threads = str(cell.config.train.threads)
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if torch.cuda.is_available():
        environment["CUDA_VISIBLE_DEVICES"] = _visible()[place]
    with (cell.folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "resolvent.studies.cell", str(cell.folder), str(os.getpid())],
            stdout=log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip


def _visible() -> list[str]:
    """Names of the GPUs that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]


def _standing(cell: Cell) -> Standing:
    """From the last lines that the cell has logged."""
    step, loss, found = 0, None, None
    for line in _lines(cell.folder / METRICS):
        try:
            values = json.loads(line)
        except ValueError:
            continue
        step, loss = values["step"], values["loss"]
        found = values.get("accuracy", values.get("perplexity", found))
    return Standing(cell, step, loss, found)


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text().splitlines()


def _last_words(cell: Cell) -> str:
    lines = [line for line in _lines(cell.folder / "log.txt") if line.strip()]
    full = shutil.disk_usage(cell.folder).free < _LITTLE
    said = lines[-1] if lines else "the disk is full" if full else "killed"
    return f"{said} (see {cell.folder / 'log.txt'})"
