"""Synthetic tasks that isolate what a mixer can do: batches with known answers. Knows nothing of models."""

from collections.abc import Mapping
from typing import Any

from resolvent.patterns.errors import closest
from resolvent.tasks.copying import Copy
from resolvent.tasks.recall import MultiHop, Recall
from resolvent.tasks.task import IGNORED, Batch, Task, TaskError

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Copy, Recall, MultiHop)}


def task(name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """A task by name, `copy`, `recall` or `multihop`, with its settings."""
    import dataclasses

    if name not in TASKS:
        raise TaskError(f"unknown task '{name}': expected {', '.join(TASKS)}.{closest(name, TASKS)}")
    kind, settings = TASKS[name], dict(settings or {})
    known = [f.name for f in dataclasses.fields(kind)]
    for key in settings:
        if key not in known:
            raise TaskError(f"unknown setting '{key}' of {name}: expected {', '.join(known)}.{closest(key, known)}")
    return kind(**settings)


__all__ = ["IGNORED", "TASKS", "Batch", "Copy", "MultiHop", "Recall", "Task", "TaskError", "task"]
