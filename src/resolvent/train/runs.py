"""Runs on disk: which there are in a folder, how far each is, what tells them apart, and what they take up.

A folder is that of a run if it has a record, settings, metrics or a checkpoint. A run is running if a process holds the
lock of its folder, finished if it has a record, and interrupted otherwise. No torch here, but to count the parameters
of runs that are not finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal, final, get_args

from resolvent.errors import SettingError, closest
from resolvent.fields import as_mapping
from resolvent.files import closest_path, is_locked
from resolvent.patterns import as_pattern
from resolvent.tasks import Measure
from resolvent.tensor_files import read_header
from resolvent.train import config_file, metrics, record
from resolvent.train.config import RunConfig
from resolvent.train.metrics import StepMetrics, read_metrics
from resolvent.train.record import Record
from resolvent.train.state import CHECKPOINT, SHARDS
from resolvent.untrusted import parse
from resolvent.untrusted import read as read_json

RunState = Literal["running", "finished", "interrupted"]
STATES: tuple[RunState, ...] = get_args(RunState)
_CELL = "config.json"  # the settings of a study's cell
_MARKS = (record.FILE, config_file.FILE, metrics.FILE, CHECKPOINT, SHARDS)


@final
@dataclass(frozen=True)
class Run:
    """A run in a folder; its name is the path from the folder that was searched."""

    name: str
    folder: Path
    state: RunState
    config: RunConfig
    record: Record | None

    @cached_property
    def log(self) -> list[StepMetrics]:
        """What has been logged so far."""
        return read_metrics(self.folder / metrics.FILE)

    @property
    def measure(self) -> Measure:
        return self.config.task.measure

    @property
    def step(self) -> int:
        return self.record.steps if self.record is not None else self.log[-1].step if self.log else 0

    @property
    def loss(self) -> float | None:
        """The training loss that was logged last."""
        if self.log:
            return self.log[-1].loss
        return self.record.curve[-1].loss if self.record is not None and self.record.curve else None

    @property
    def value(self) -> float | None:
        """Accuracy or perplexity: of the final evaluation, or the last one so far."""
        if self.record is not None:
            return self.record.evaluation.value
        return next((line.value for line in reversed(self.log) if line.value is not None), None)

    @cached_property
    def parameters(self) -> int:
        if self.record is not None:
            return self.record.parameters
        from resolvent.model import LanguageModel  # torch

        return LanguageModel.shape_only(self.config.model).parameter_count()

    @property
    def changed(self) -> float:
        """When it was last written, in seconds since the epoch."""
        paths = [self.folder / name for name in _MARKS if (self.folder / name).exists()]
        return max((path.stat().st_mtime for path in paths), default=self.folder.stat().st_mtime)

    @cached_property
    def settings(self) -> dict[str, object]:
        return self.config.flat()

    def to_dict(self) -> dict[str, object]:
        evaluation = None if self.record is None else self.record.evaluation.to_dict()
        return {
            "name": self.name, "folder": str(self.folder), "state": self.state, "task": self.config.task.name,
            "pattern": self.config.model.pattern_label, "parameters": self.parameters, "step": self.step,
            "steps": self.config.train.steps, "loss": self.loss, self.measure: self.value, "changed": self.changed,
            "evaluation": evaluation, "settings": self.settings,
        }  # fmt: skip


def find_runs(folder: Path, on_problem: Callable[[str], None] = lambda _: None) -> list[Run]:
    """The runs in a folder and in folders inside it, by name; `on_problem` hears of those that cannot be read."""
    if not folder.is_dir():
        raise SettingError(
            f"there is no folder {folder}: expected one with runs in it, as 'resolvent train' writes them."
            f"{closest_path(folder)}"
        )
    runs = []
    for path in _run_folders(folder):
        try:
            runs.append(read_run(path, str(path.relative_to(folder)) if path != folder else folder.resolve().name))
        except (OSError, ValueError) as error:
            on_problem(f"{path} cannot be read: {error}")
    return sorted(runs, key=lambda run: run.name)


def why_empty(folder: Path) -> str:
    """What to say of a folder without runs: it may be that of a model."""
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return f"{folder} is a saved model, and not a run: 'resolvent evaluate' and 'resolvent generate' take it."
    return f"there are no runs in {folder}: 'resolvent train' writes them."


def read_run(folder: Path, name: str | None = None) -> Run:
    """The run in a folder."""
    if not any((folder / mark).exists() for mark in _MARKS):
        if folder.exists():
            raise SettingError(f"{folder} holds no run: expected {', '.join(_MARKS)}, or one of them.")
        raise SettingError(f"there is no folder {folder}. 'resolvent runs' lists runs.{closest_path(folder)}")
    finished = Record.read(folder / record.FILE) if (folder / record.FILE).exists() else None
    config = _config(folder) if finished is None else finished.config
    state: RunState = "running" if is_locked(folder) else "finished" if finished is not None else "interrupted"
    return Run(name or str(folder), folder, state, config, finished)


def _run_folders(folder: Path) -> Iterator[Path]:
    """Not those inside runs, nor behind links."""
    for path, folders, files in os.walk(folder):
        if any(mark in files or mark in folders for mark in _MARKS):
            folders.clear()
            yield Path(path)


def _config(folder: Path) -> RunConfig:
    """The settings of a run that is not finished, from wherever they are."""
    if (folder / config_file.FILE).exists():
        return config_file.read_config(folder / config_file.FILE)
    if (folder / _CELL).exists():
        return RunConfig.from_dict(as_mapping(read_json(folder / _CELL), _CELL))
    if (folder / CHECKPOINT).exists():
        state = read_header(folder / CHECKPOINT, "delete it.").metadata.get("state", "{}")
        content = as_mapping(parse(state), "a checkpoint's state")
        return RunConfig.from_dict(as_mapping(content.get("config"), "config"))
    raise SettingError(f"its settings are unknown: expected {config_file.FILE}.")


@final
@dataclass(frozen=True)
class RunFilter:
    """Which runs are meant: all that agree with what is given.

    pattern   of any layer; `exponential*` stands for all that begin so
    settings  such as `train.seed` and the text of its value
    """

    task: str | None = None
    pattern: str | None = None
    state: str | None = None
    settings: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise SettingError(
                f"unknown state '{self.state}': expected {', '.join(STATES)}.{closest(self.state, STATES)}"
            )

    def apply(self, runs: Sequence[Run]) -> list[Run]:
        """Those that agree. A setting that no run has raises an error."""
        known = list(dict.fromkeys(key for run in runs for key in run.settings))
        for key in self.settings or {}:
            if known and key not in known:
                raise SettingError(f"no run has the setting '{key}': expected section.name.{closest(key, known)}")
        return [run for run in runs if self._agrees(run)]

    def _agrees(self, run: Run) -> bool:
        return (
            self.task in (None, run.config.task.name)
            and self.state in (None, run.state)
            and (self.pattern is None or _has_pattern(run, self.pattern))
            and all(
                key in run.settings and _same(run.settings[key], text) for key, text in (self.settings or {}).items()
            )
        )


def different_settings(runs: Sequence[Run]) -> dict[str, list[object]]:
    """Settings that are not the same in all runs, with the value of each; None where a run has no such setting."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    table = {key: [run.settings.get(key) for run in runs] for key in keys}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}


def _has_pattern(run: Run, given: str) -> bool:
    labels = [run.config.model.pattern_label, *run.config.model.pattern_label.split(" | ")]
    with suppress(ValueError):  # not a spelling: perhaps a beginning and a star
        given = str(as_pattern(given))
    return any(fnmatchcase(label, given) for label in labels)


def _same(value: object, text: str) -> bool:
    """A value as somebody writes it: 0.001 is 1e-3, a word may have stars."""
    with suppress(ValueError):
        if parse(text) == value:
            return True
    return fnmatchcase("none" if value is None else str(value), text)
