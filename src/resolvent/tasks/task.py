"""What every task offers: batches to train on, batches held out, and the settings that make it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from resolvent.batch import Batch
from resolvent.errors import closest
from resolvent.fields import check_types

Measure = Literal["accuracy", "perplexity"]
EvaluatedOn = Literal["answers", "text", "documents"]


T = TypeVar("T", bound="Task")


class TaskError(ValueError):
    """A task that cannot be set: the message says what was expected."""


@dataclass(frozen=True)
class Task(ABC):
    """Something to learn. All that is random about a batch follows from (seed, index).

    name          what settings and commands call it
    measure       what models are measured by on held-out batches
    evaluated_on  which kind of evaluation that is: of answers, of a text, or of documents beside readers of theirs
    """

    name: ClassVar[str]
    measure: ClassVar[Measure]
    evaluated_on: ClassVar[EvaluatedOn]

    vocab_size: int = field(default=0, kw_only=True)  # 0: not known before the task is prepared

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of the longest sequence."""

    @abstractmethod
    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1) -> Batch:
        """Batch number `index` to train on; a curriculum divides sizes by `divisor`."""

    @abstractmethod
    def held_out(self, seed: int, count: int, batches: int | None = None) -> Iterator[Batch]:
        """Batches that are never trained on, in order; all of them if the task has an end and `batches` is None."""

    def prepared(self) -> Self:
        """The same task with all its settings known, and its files open. What is wrong with them raises an error."""
        return self

    def epochs(self, tokens: int) -> float | None:  # noqa: ARG002
        """So many tokens as passes over the training data; None if batches are made on the fly."""
        return None

    def save_files(self, folder: Path) -> None:  # noqa: B027 (most tasks have no such files)
        """Keep what a model needs beside its weights, such as a tokenizer."""

    def changed(self, settings: Mapping[str, object]) -> Self:
        """With other settings."""
        change: Callable[..., Self] = dataclasses.replace  # the task checks its settings
        return checked(self.name, lambda: change(self, **settings))

    def settings(self) -> dict[str, object]:
        """Name and settings as plain values, from which `resolvent.tasks.task` makes the same task."""
        return {"name": self.name, **dataclasses.asdict(self)}


def checked(name: str, make: Callable[[], T]) -> T:
    """The task that `make` returns, if the types of its settings are right."""
    try:
        made = make()
        check_types(made)
        return made
    except TypeError as error:
        raise TaskError(f"{name} is missing a setting or has one of another type ({error}).") from error


def require(condition: bool, message: str) -> None:
    if not condition:
        raise TaskError(message)


def require_one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise TaskError(f"expected {name} {' or '.join(choices)}, got {value!r}.{closest(str(value), choices)}")
