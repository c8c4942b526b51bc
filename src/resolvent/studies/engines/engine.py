"""What an engine is: it starts cells, and says when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from resolvent.errors import SettingError, closest


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
