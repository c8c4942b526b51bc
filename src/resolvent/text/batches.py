"""Batches of a text, for training and for evaluation.

Both see a split as one row of tokens: documents follow one another, with the end-of-text token between them; one that
is longer than the context is cut into windows, and shorter ones share a window. Nothing is reset where a document ends.
A place is a token that has a next one: at place i, token i is read and token i + 1 is the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.errors import is_integer
from resolvent.tasks.task import IGNORED, Batch, Tokens
from resolvent.text.files import TextError

_LARGEST = 700.0  # a loss whose exponential is still a number
Row = npt.NDArray[np.integer[Any]]


@final
@dataclass(frozen=True, eq=False)
class TextBatches:
    """Batches (batch, context) for training, number `index` of them a function of (seed, index) alone.

    An epoch lays the places of the text on a circle, cuts it into windows of `context` places from a random one on, and
    goes through them in random order: every target comes exactly once per epoch, and each epoch cuts elsewhere. A
    window that runs over the end of the text goes on at its beginning. Where the windows do not fit evenly, the last
    one reads on over places that others have, and their targets are `IGNORED` in it. Batches do not stop at epochs.
    """

    tokens: Row
    context: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.tokens, context=self.context, batch=self.batch)
        if len(self.tokens) <= self.context:
            raise TextError(
                f"the text is too short: expected more than {self.context:,} tokens, one window of context, got "
                f"{len(self.tokens):,}. Use a shorter context."
            )

    @property
    def places(self) -> int:
        return len(self.tokens) - 1

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.places // self.context)

    def epochs(self, index: int) -> float:
        """How often the text was gone through before this batch."""
        return index * self.batch / self.windows

    def make(self, index: int) -> Batch:
        """Batch number `index`: the same for the same numbers, whoever asks, and in whatever order."""
        if not is_integer(index) or index < 0:
            raise TextError(f"batches are numbered from 0: expected an integer ≥ 0, got {index!r}.")
        tokens, targets = (np.empty((self.batch, self.context), dtype=np.int64) for _ in range(2))
        for row in range(self.batch):
            epoch, number = divmod(index * self.batch + row, self.windows)
            phase, order = _epoch(self.seed, epoch, self.places, self.windows)
            first = int(order[number]) * self.context
            tokens[row], targets[row] = self._window((phase + first) % self.places)
            targets[row, self.places - first :] = IGNORED
        return Batch(tokens, targets)

    def _window(self, begin: int) -> tuple[Row, Row]:
        end = begin + self.context
        if end <= self.places:
            return self.tokens[begin:end], self.tokens[begin + 1 : end + 1]
        over = end - self.places  # at most one turn, since the text is longer than a window
        read = np.concatenate([self.tokens[begin : self.places], self.tokens[:over]])
        return read, np.concatenate([self.tokens[begin + 1 :], self.tokens[1 : over + 1]])


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, places: int, windows: int) -> tuple[int, npt.NDArray[np.int64]]:
    rng = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), epoch], dtype=np.uint64)))
    return int(rng.integers(places)), rng.permutation(windows)


@final
@dataclass(frozen=True, eq=False)
class Windows:
    """Windows for evaluation, in order: every token but the very first is a target exactly once.

    Windows begin `stride` places apart, `context` unless it is given: then none overlap. With a shorter stride only the
    last `stride` targets of a window count (all of the first window's), so that each has at least context - stride
    tokens before it. The last window is filled up with zeros behind the text, where a causal model cannot see them.
    """

    tokens: Row
    context: int
    batch: int = 1
    stride: int | None = None
    step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", self.context if self.stride is None else self.stride)
        _require(self.tokens, context=self.context, batch=self.batch, stride=self.step)
        if self.step > self.context:
            raise TextError(f"expected a stride of at most the context, {self.context:,}, got {self.step:,}.")
        if len(self.tokens) < 2:
            raise TextError(f"the text is too short: expected at least 2 tokens, got {len(self.tokens)}.")

    @property
    def windows(self) -> int:
        return 1 + max(0, -(-(len(self.tokens) - 1 - self.context) // self.step))

    def __len__(self) -> int:
        """How many batches; the last one may have fewer rows."""
        return -(-self.windows // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, range(len(self)))

    def make(self, index: int) -> Batch:
        """Batch number `index`."""
        if not is_integer(index) or not 0 <= index < len(self):
            raise TextError(f"expected the number of a batch, from 0 to {len(self) - 1:,}, got {index!r}.")
        numbers = range(index * self.batch, min((index + 1) * self.batch, self.windows))
        tokens: Tokens = np.zeros((len(numbers), self.context), dtype=np.int64)
        targets: Tokens = np.full((len(numbers), self.context), IGNORED, dtype=np.int64)
        for row, number in enumerate(numbers):
            begin = number * self.step
            there = self.tokens[begin : begin + self.context + 1]
            old = self.context - self.step if number else 0  # places that the window before has counted
            tokens[row, : len(there) - 1] = there[:-1]
            targets[row, old : len(there) - 1] = there[1 + old :]
        return Batch(tokens, targets)


def _require(tokens: Row, **sizes: int) -> None:
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise TextError(f"expected a row of token numbers, got shape {tokens.shape} of {tokens.dtype}.")
    for name, value in sizes.items():
        if not is_integer(value) or value < 1:
            raise TextError(f"expected {name} to be an integer ≥ 1, got {value!r}.")


def perplexity(loss: float) -> float:
    """Of a mean loss in nats; infinite where no number is so large."""
    return math.exp(loss) if loss < _LARGEST else math.inf
