"""What an engine is, and the process that it starts for a cell, on whatever machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from resolvent.errors import SettingError, closest

LOG = "log.txt"


class Job(Protocol):
    """A cell that was started."""

    def poll(self) -> int | None:
        """None until it has ended, then zero if it has left its record. If not, the last line of its log says why."""

    def terminate(self) -> None:
        """End it soon: its study was interrupted, and will resume it."""


class Engine(Protocol):
    """Where cells run."""

    def jobs(self, asked: int | None, cells: int) -> int:
        """How many of the cells to start at once, if asked for a number or not."""

    def start(self, folder: Path, threads: int) -> Job:
        """Start the cell whose config is in the folder, an absolute path, on so many cores."""

    def close(self) -> None:
        """No more cells will be started, and all jobs have ended or were told to."""


def check_options(engine: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise an error if an engine does not know an option."""
    names = list(known)
    for key in options:
        if key not in names:
            expected = ", ".join(names) or "no options"
            raise SettingError(f"unknown option '{key}' of {engine}: expected {expected}.{closest(key, names)}")


def start_process(
    folder: Path, threads: int, variables: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the cell in a folder; it ends when this process does. Its output goes to a log there."""
    count = str(threads)
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "resolvent.studies.cell", str(folder), str(os.getpid())],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment | dict(variables or {}),
            cwd=directory,
        )


def run_process(folder: str, threads: int, directory: str) -> int:
    """Run the cell in a folder, on a machine of a cluster, from the folder that the study was started in."""
    for path in (directory, folder):
        if not Path(path).is_dir():
            raise NotADirectoryError(
                f"{path} is not on {os.uname().nodename}: expected a file system that all machines share."
            )
    process = start_process(Path(folder), threads, directory=Path(directory))
    try:
        return process.wait()
    finally:
        process.kill()  # if this was interrupted


def note(folder: Path, reason: str) -> None:
    """Add to the log of a cell why it did not run to its end."""
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n{reason.strip()}\n")
