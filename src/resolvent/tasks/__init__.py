"""What models learn, as values: synthetic tasks that isolate what a mixer can do, and text. No torch, no models."""

import dataclasses
from collections.abc import Callable, Mapping

from resolvent.batch import IGNORED, Batch
from resolvent.errors import closest
from resolvent.tasks.copying import Copy
from resolvent.tasks.recall import MultiHop, Recall
from resolvent.tasks.synthetic import Synthetic
from resolvent.tasks.task import Measure, Task, TaskError, checked
from resolvent.tasks.text import Text

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Copy, Recall, MultiHop, Text)}


def task(name: str, settings: Mapping[str, object] | None = None) -> Task:
    """A task by name, with its settings."""
    if name not in TASKS:
        raise TaskError(f"unknown task '{name}': expected {', '.join(TASKS)}.{closest(name, TASKS)}")
    kind, given = TASKS[name], dict(settings or {})
    known = [f.name for f in dataclasses.fields(kind)]
    for key in given:
        if key not in known:
            raise TaskError(f"unknown setting '{key}' of {name}: expected {', '.join(known)}.{closest(key, known)}")
    make: Callable[..., Task] = kind  # which checks its settings
    return checked(name, lambda: make(**given))


__all__ = [
    "IGNORED",
    "TASKS",
    "Batch",
    "Copy",
    "Measure",
    "MultiHop",
    "Recall",
    "Synthetic",
    "Task",
    "TaskError",
    "Text",
    "task",
]
