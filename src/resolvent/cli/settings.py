"""A run from what a command was given: its settings (a preset, a file over it, options over both), and its folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import SettingError
from resolvent.fields import as_integer, as_text
from resolvent.files import BusyError, locked
from resolvent.tasks import TASKS, Markov, Text, split_spelling
from resolvent.train.config_file import ConfigFile
from resolvent.train.record import FILE, Record

if TYPE_CHECKING:
    from resolvent.train import RunConfig

PATTERN = "exponential+cache"
RUNS = Path("runs")
_LONGEST_NAME = 80  # characters


@dataclass(frozen=True)
class RunOptions:
    """Options of a command that stand for settings; None where they are not given. A task may have settings in it."""

    task: str | None
    patterns: Sequence[str] = ()
    rule: str | None = None
    corpus: Path | None = None
    preset: str | None = None
    seed: int | None = None
    changes: Sequence[str] = ()
    start: Path | None = None

    def config(self, file: ConfigFile) -> RunConfig:
        """All settings, of a task that is prepared."""
        config = self._started(file.over(self._preset(file)), file)
        return config.changed([*self._overrides(file), *self._spelled, *self.changes]).prepared()

    def preset_name(self, file: ConfigFile) -> str:
        return self.preset or file.preset or ("quick" if self._task(file) in (Text.name, Markov.name) else "small")

    @property
    def _spelled(self) -> list[str]:
        """Settings that follow the name of the task; a chain of k tokens is learnt by a model with as many."""
        name, settings = split_spelling(self.task) if self.task is not None else ("", [])
        sizes = [setting.partition("=")[2] for setting in settings if name == Markov.name and setting.startswith("k=")]
        return [*(f"task.{setting}" for setting in settings), *(f"model.vocab_size={size}" for size in sizes)]

    def _started(self, config: RunConfig, file: ConfigFile) -> RunConfig:
        """With the model that training starts from, if there is one; a file may have its settings already."""
        start = self.start or config.train.start
        if not start or (self.start is None and "model" in file.sections):
            return config
        from resolvent.train.model_source import open_model

        source = open_model(start)
        if isinstance(config.task, Text):
            source.check_tokenizer(config.task.tokenizer)
        settings = dataclasses.replace(config.train, start=str(start), start_sha256="")
        return dataclasses.replace(config, model=source.config, train=settings)

    def _preset(self, file: ConfigFile) -> RunConfig:
        from resolvent.studies import incontext, table1
        from resolvent.studies.language import presets

        task, preset, seed = self._task(file), self.preset_name(file), self.seed or 0
        pattern, corpus = self._pattern(file), self.corpus or file.setting("task", "corpus")
        if task != Text.name:
            if corpus is not None:
                raise SettingError(f"{task} makes its own sequences: --corpus goes with 'resolvent train text'.")
            if task == Markov.name:
                made = incontext.run_config(incontext.preset_of(preset).arms[0], pattern, seed)
            else:
                made = table1.run_config(table1.preset_of(preset, [task]), task, pattern, seed)
            return self._tuned(made, file)
        if corpus is None:
            raise SettingError("expected --corpus, the folder of a prepared text: see 'resolvent data prepare --help'.")
        size = presets.preset_of(preset)
        context = as_integer(file.setting("task", "context") or size.context, "task.context", least=1)
        return self._tuned(presets.run_config(size, Text(str(corpus), context).prepared(), pattern, seed), file)

    def _tuned(self, config: RunConfig, file: ConfigFile) -> RunConfig:
        """With the learning rate that the file has for the pattern, if it has rates."""
        rate = file.rate(self._pattern(file))
        if rate is None:
            return config
        return dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=rate))

    def _task(self, file: ConfigFile) -> str:
        given = self.task or file.task
        if given is None:
            raise SettingError(f"expected a task, {', '.join(TASKS)}, or --config with a file that names one.")
        task, _ = split_spelling(given)
        if file.task not in (None, task):
            raise SettingError(f"{file.path} has settings of the task {file.task}: expected that task, got {task}.")
        return task

    def _pattern(self, file: ConfigFile) -> str:
        """That of the first layer, where presets begin."""
        given: object = self.patterns or file.setting("model", "pattern") or PATTERN
        while isinstance(given, list | tuple):
            given = given[0] if given else PATTERN
        return as_text(given, "model.pattern")

    def _overrides(self, file: ConfigFile) -> list[str]:
        """Settings that stand for options: one pattern per layer, a rule for all layers; any of them over a file's."""
        overrides = []
        if len(self.patterns) > 1:
            overrides.append(f"model.pattern={json.dumps(list(self.patterns))}")
        elif self.patterns and (self.start or file.setting("model", "pattern") is not None):
            overrides.append(f"model.pattern={json.dumps(self.patterns[0])}")
        if self.rule is not None:
            overrides.append(f"model.rule={self.rule}")
        if self.seed is not None:
            overrides.append(f"train.seed={self.seed}")
        if self.corpus is not None and file.setting("task", "corpus") is not None:
            overrides.append(f"task.corpus={json.dumps(str(self.corpus))}")
        return overrides


def default_folder(config: RunConfig, preset: str, parent: Path = RUNS) -> tuple[Path, str]:
    """The folder for a run, and why it is not the first of its name, if it is not.

    Runs of the same settings, or of fewer steps, share their folder: the later call resumes or extends the earlier. Of
    other settings, each has a folder of its own.
    """
    name, reason = run_name(config, preset), ""
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        different = _difference(config, folder)
        if not different:
            return folder, reason
        reason = f"{folder} holds another run ({different})"
    raise AssertionError  # of an endless loop


def run_name(config: RunConfig, preset: str) -> str:
    """What distinguishes a run at a glance: task or corpus, preset, patterns, seed, and what it starts from."""
    task, settings = config.task, config.train
    label = config.model.pattern_label
    words = [Path(task.corpus).name if isinstance(task, Text) else task.name, preset, label, f"seed{settings.seed}"]
    if settings.start:
        words += ["from", Path(settings.start).resolve().name]
    name = re.sub(r"[^A-Za-z0-9.=@+,-]+", "_", "-".join(words))
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _difference(config: RunConfig, folder: Path) -> str:
    """How the run in a folder differs from this one; empty if it does not, or if there is none."""
    differences = [_apart_from_more_steps(config, saved) for saved in saved_configs(folder)]
    return min(differences, key=len) if differences else _busy(folder)


def _apart_from_more_steps(config: RunConfig, saved: RunConfig) -> str:
    more_steps = saved.train.steps < config.train.steps
    return config.differences(saved.with_steps(config.train.steps) if more_steps else saved)


def _busy(folder: Path) -> str:
    """A run that has left nothing yet: its settings are not known, and they may be others."""
    if not folder.exists():
        return ""
    try:
        with locked(folder):
            return ""
    except BusyError:
        return "another process is working in it"


def saved_configs(folder: Path) -> list[RunConfig]:
    """The settings of the run in a folder: those of its record, and those of its checkpoint, of more steps maybe."""
    from resolvent.train import checkpoint

    path, latest = folder / FILE, checkpoint.latest(folder)
    finished = [Record.read(path).config] if path.exists() else []
    return finished if latest is None else [*finished, latest.run.config]
