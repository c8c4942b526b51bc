"""What models learn, as values: synthetic tasks that isolate what a mixer can do, and text. No torch, no models."""

import dataclasses
from collections.abc import Callable, Mapping

from resolvent import untrusted
from resolvent.batch import IGNORED, Batch
from resolvent.errors import closest
from resolvent.tasks.copying import Copy
from resolvent.tasks.markov import Markov
from resolvent.tasks.recall import MultiHop, Recall
from resolvent.tasks.synthetic import Synthetic
from resolvent.tasks.task import EvaluatedOn, Measure, Task, TaskError, checked
from resolvent.tasks.text import Text

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Copy, Recall, MultiHop, Markov, Text)}


def split_spelling(spelling: str) -> tuple[str, list[str]]:
    """The name of a task, and settings that follow it as in `markov:k=16,alpha=0.1`."""
    name, colon, rest = spelling.partition(":")
    if name not in TASKS:
        raise TaskError(f"unknown task '{name}': expected {', '.join(TASKS)}.{closest(name, TASKS)}")
    settings = [setting.strip() for setting in rest.split(",")] if colon else []
    for setting in settings:
        if not all(word.strip() for word in setting.partition("=")):
            raise TaskError(f"expected '{name}' or '{name}:setting=value,…', got '{spelling}'.")
    return name, settings


def task(spelling: str, settings: Mapping[str, object] | None = None) -> Task:
    """A task by name, with its settings; some may stand in the name, as in `markov:k=16,alpha=0.1`."""
    name, spelled = split_spelling(spelling)
    kind, given = TASKS[name], {key: _value(text) for key, _, text in (each.partition("=") for each in spelled)}
    given |= settings or {}
    known = [f.name for f in dataclasses.fields(kind)]
    for key in given:
        if key not in known:
            raise TaskError(f"unknown setting '{key}' of {name}: expected {', '.join(known)}.{closest(key, known)}")
    make: Callable[..., Task] = kind  # which checks its settings
    return checked(name, lambda: make(**given))


def _value(text: str) -> object:
    """A number, true or false; anything that is not JSON is a word."""
    try:
        return untrusted.parse(text)
    except ValueError:
        return text


__all__ = [
    "IGNORED",
    "TASKS",
    "Batch",
    "Copy",
    "EvaluatedOn",
    "Markov",
    "Measure",
    "MultiHop",
    "Recall",
    "Synthetic",
    "Task",
    "TaskError",
    "Text",
    "split_spelling",
    "task",
]
