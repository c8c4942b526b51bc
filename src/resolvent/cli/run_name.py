"""The folder of a run that nobody named: runs/NAME, and never the folder of another run."""

from __future__ import annotations

import hashlib
import re
from itertools import count
from pathlib import Path

from resolvent.files import BusyError, locked
from resolvent.tasks import Text
from resolvent.train.config import RunConfig
from resolvent.train.record import FILE, Record

RUNS = Path("runs")
_LONGEST = 80  # characters


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
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


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
