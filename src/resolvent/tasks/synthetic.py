"""Synthetic tasks: sequences with known answers, made on the fly, and an oracle that shows they can be solved."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from resolvent.batch import IGNORED, Batch, Tokens
from resolvent.tasks.task import Task

BLANK, BEGIN, END = 0, 1, 2
FIRST_SYMBOL = 3
HELD_OUT = 1 << 40  # added to seeds: no run trains on these streams

Floor = Literal["constant", "shown", "commonest", "shortcut"]
Chances = dict[Floor, npt.NDArray[np.float64]]  # (B, N) each: how likely the guess is right; 0 where nothing is asked


@dataclass(frozen=True)
class Synthetic(Task):
    """Sequences of many sizes: a size is a number of symbols, or of pairs.

    shortcut  the best way known to guess without solving the task
    """

    measure = "accuracy"
    evaluated_on = "answers"
    shortcut: ClassVar[str]

    vocab_size: int = field(default=8192, kw_only=True)

    @abstractmethod
    def sizes(self, divisor: int) -> tuple[int, int]:
        """The least and the largest size when a curriculum divides by this."""

    @abstractmethod
    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        """So many sequences of one size."""

    @abstractmethod
    def solve(self, tokens: Tokens) -> Tokens:
        """The answers (B, N) from the tokens alone, by a program; anything where no answer is expected."""

    @abstractmethod
    def guesses(self, batch: Batch) -> Chances:
        """How likely a guess is right at each scored position: always the same token, one of those shown so far, the
        commonest of those, and the `shortcut`.
        """

    @abstractmethod
    def word(self, token: int) -> str:
        """How a token is written in a sample."""

    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1, size: int | None = None) -> Batch:
        """Batch number `index` of a stream: the same for the same numbers, whoever asks, and in whatever order."""
        rng = stream(seed, index)
        least, most = self.sizes(divisor)
        drawn = int(rng.integers(least, most + 1))
        return self.make(rng, count, drawn if size is None else size)

    def held_out(self, seed: int, count: int, batches: int | None = None) -> Iterator[Batch]:
        """Sizes are spread evenly from the least to the largest; they are the first slice of each batch."""
        number = 1 if batches is None else batches
        least, most = self.sizes(1)
        for index in range(number):
            size = least + (most - least) * index // max(number - 1, 1)
            batch = self.batch(seed + HELD_OUT, index, count, size=size)
            sizes = np.where(batch.targets == IGNORED, IGNORED, size)
            yield dataclasses.replace(batch, slices={"size": sizes, **batch.slices})

    def floors(self, batches: Iterable[Batch]) -> dict[Floor, float]:
        """The accuracy that guessing has on these batches, in expectation: exact but for which sequences they hold."""
        sums: dict[Floor, float] = {}
        scored = 0
        for batch in batches:
            asked = batch.targets != IGNORED
            scored += int(asked.sum())
            for name, chances in self.guesses(batch).items():
                sums[name] = sums.get(name, 0.0) + float(chances[asked].sum())
        return {name: total / scored for name, total in sums.items()}

    def sample(self, seed: int = 0, size: int | None = None) -> str:
        """One sequence drawn: its tokens, and below each the answer that is expected there."""
        return self.draw(self.batch(seed, 0, 1, size=size))

    def draw(self, batch: Batch, answers: Tokens | None = None) -> str:
        """The first sequence of a batch: its tokens, and below each the answer that is expected, and the one given."""
        targets = batch.targets[0].tolist()
        rows = [[self.word(token) for token in batch.tokens[0].tolist()]]
        for row in (targets, *([] if answers is None else [answers[0].tolist()])):
            rows.append(["" if t == IGNORED else self.word(each) for t, each in zip(targets, row, strict=True)])
        lines, width = [], max(len(word) for row in rows for word in row) + 1
        for begin in range(0, len(targets), 16):
            lines += ["".join(word.rjust(width) for word in row[begin : begin + 16]).rstrip() for row in rows]
        return "\n".join(lines)


def stream(seed: int, index: int) -> np.random.Generator:
    """All that is random about batch number `index` of a stream."""
    return np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), index], dtype=np.uint64)))


def chance_of_commonest(counts: Mapping[int, int], target: int) -> float:
    """How likely the commonest is the target, if ties are broken at random."""
    most = max(counts.values())
    return 1 / sum(count == most for count in counts.values()) if counts.get(target, 0) == most else 0.0


def no_chances(batch: Batch, floors: Collection[Floor] = ("constant", "shown", "commonest", "shortcut")) -> Chances:
    return {name: np.zeros(batch.tokens.shape) for name in floors}


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


def scattered(rng: np.random.Generator, count: int, items: int, width: int, length: int) -> Tokens:
    """(count, items) first positions of items of this width in a row of `length`, in order, gaps anywhere."""
    free = length - items * (width - 1)  # as if each took one position
    chosen = rng.random((count, free)).argsort(1)[:, :items]
    chosen.sort(1)
    return chosen + (width - 1) * np.arange(items)
