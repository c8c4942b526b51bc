"""What every task offers: batches from a seed, and an oracle that shows they can be solved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
IGNORED = -100  # targets that do not count
BLANK, BEGIN, END = 0, 1, 2
FIRST_SYMBOL = 3


class TaskError(ValueError):
    """A task that cannot be set: the message says what was expected."""


@final
@dataclass(frozen=True)
class Batch:
    """Tokens (B, N), and at each position the token expected next to it or `IGNORED`.

    `slices` has for each scored position a number by which results are broken down, such as hops; `IGNORED` elsewhere.
    """

    tokens: Tokens
    targets: Tokens
    slices: Mapping[str, Tokens] = field(default_factory=dict)

    def rows(self, part: slice) -> Batch:
        """Some of the sequences."""
        return Batch(self.tokens[part], self.targets[part], {name: s[part] for name, s in self.slices.items()})


@dataclass(frozen=True)
class Task(ABC):
    """Sequences with known answers, made on the fly. All that is random follows from (seed, index)."""

    name: ClassVar[str]
    vocab_size: int = 8192

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of the longest sequence."""

    @abstractmethod
    def sizes(self, divisor: int) -> tuple[int, int]:
        """The least and the largest size (length, or pairs) when a curriculum divides by this."""

    @abstractmethod
    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        """So many sequences of one size."""

    @abstractmethod
    def solve(self, tokens: Tokens) -> Tokens:
        """The answers (B, N) from the tokens alone, by a program; anything where no answer is expected."""

    @abstractmethod
    def size_of(self, tokens: Tokens) -> int:
        """The size that a batch of tokens was made with."""

    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1, size: int | None = None) -> Batch:
        """Batch number `index` of a stream: the same for the same numbers, whoever asks, and in whatever order."""
        rng = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), index], dtype=np.uint64)))
        least, most = self.sizes(divisor)
        drawn = int(rng.integers(least, most + 1))
        return self.make(rng, count, drawn if size is None else size)

    def sample(self, seed: int = 0, size: int | None = None) -> str:
        """One sequence drawn: its tokens, and below each the answer that is expected there."""
        batch = self.batch(seed, 0, 1, size=size)
        cells = [
            (self.word(token), "" if target == IGNORED else self.word(target))
            for token, target in zip(batch.tokens[0].tolist(), batch.targets[0].tolist(), strict=True)
        ]
        lines, width = [], max(len(word) for pair in cells for word in pair) + 1
        for begin in range(0, len(cells), 16):
            for row in (0, 1):
                lines.append("".join(pair[row].rjust(width) for pair in cells[begin : begin + 16]).rstrip())
        return "\n".join(lines)

    @abstractmethod
    def word(self, token: int) -> str:
        """How a token is written in a sample."""

    def settings(self) -> dict[str, Any]:
        """Name and settings as plain values, from which `resolvent.tasks.task` makes the same task."""
        import dataclasses

        return {"name": self.name, **dataclasses.asdict(self)}


def require(condition: bool, message: str) -> None:
    if not condition:
        raise TaskError(message)


def distinct(rng: np.random.Generator, count: int, each: int, low: int, high: int) -> Tokens:
    """(count, each) numbers from low … high - 1, no two alike in a row: those drawn twice are drawn again."""
    rows = rng.integers(low, high, (count, each))
    while True:
        order = rows.argsort(1, kind="stable")
        ranked = np.take_along_axis(rows, order, 1)
        twice = np.zeros(rows.shape, dtype=bool)
        np.put_along_axis(twice, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], 1)
        if not twice.any():
            return rows
        rows[twice] = rng.integers(low, high, int(twice.sum()))


def shuffled(rng: np.random.Generator, count: int, each: int) -> Tokens:
    """(count, each): a permutation in every row."""
    return rng.random((count, each)).argsort(1)


def spread(rng: np.random.Generator, count: int, items: int, width: int, room: int) -> Tokens:
    """(count, items) places of items of this width in a row of `room` places, in order, gaps anywhere."""
    free = room - items * (width - 1)  # as if each took one place
    chosen = rng.random((count, free)).argsort(1)[:, :items]
    chosen.sort(1)
    return chosen + (width - 1) * np.arange(items)
