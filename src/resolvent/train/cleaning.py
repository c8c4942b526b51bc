"""Remove runs, or their checkpoints: only files that runs write, and never those of a run that is running."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from resolvent.files import BusyError, locked
from resolvent.text.tokenizer_file import FILE as TOKENIZER
from resolvent.train import config_file, metrics, record
from resolvent.train.runs import Run
from resolvent.train.state import CHECKPOINT, SHARDS

_CHECKPOINTS = (CHECKPOINT, SHARDS)
_OWN = (*_CHECKPOINTS, record.FILE, config_file.FILE, metrics.FILE, TOKENIZER, "model", "tensorboard", "wandb")
_CELL = ("log.txt", "config.json")  # of a study's cell


@final
@dataclass(frozen=True)
class Removal:
    """What of a run is to be removed. Files of others in its folder stay, and so does the folder, then."""

    run: Run
    paths: tuple[Path, ...]

    @property
    def nbytes(self) -> int:
        return sum(_size(path) for path in self.paths)

    def remove(self) -> bool:
        """Remove it; False if a process works in the folder by now, or has finished the run."""
        folder = self.run.folder
        try:
            with locked(folder):
                if self.run.record is None and (folder / record.FILE).exists():
                    return False
                for path in self.paths:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        except BusyError:
            return False
        with suppress(OSError):  # not empty
            folder.rmdir()
        return True


def plan_removal(runs: Sequence[Run], *, checkpoints_only: bool = False) -> list[Removal]:
    """What would be removed of these runs, but for running ones; those without any such file are left out."""
    removals = []
    for run in runs:
        if run.state != "running":
            names = _CHECKPOINTS if checkpoints_only else _names(run.folder)
            paths = tuple(run.folder / name for name in names if (run.folder / name).exists())
            leftovers = tuple(run.folder.glob(".tmp??????"))
            removals.append(Removal(run, paths + leftovers))
    return [removal for removal in removals if removal.paths]


def _names(folder: Path) -> tuple[str, ...]:
    return (*_OWN, *_CELL) if (folder / _CELL[0]).exists() else _OWN


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())
