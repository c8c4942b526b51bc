"""Batches of a text, for training and for evaluation.

Both treat a split as one sequence of tokens: documents follow one another, separated by the end-of-text token. A
document longer than the context is cut into windows, and shorter ones share a window; nothing is reset at document
boundaries. A position is a token that has a successor: at position i, token i is the input and token i + 1 the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt

from resolvent.batch import IGNORED, Batch, Tokens
from resolvent.errors import is_integer
from resolvent.text.files import TextError

_LARGEST_LOSS = 700.0  # its exponential is still finite
TokenSequence = npt.NDArray[np.integer[Any]]  # (tokens,)


@final
@dataclass(frozen=True, eq=False)
class TextBatches:
    """Batches (batch, context) for training; batch `index` depends on (seed, index) alone.

    An epoch treats the text as circular, cuts it into windows of `context` positions from a random offset on, and
    visits them in random order: every target occurs exactly once per epoch, and each epoch cuts elsewhere. A window
    that extends past the end of the text wraps around to its beginning. If the windows do not fit evenly, the last
    one overlaps another, and the targets they share are `IGNORED` in it. Batches may span epochs.
    """

    tokens: TokenSequence
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
    def positions(self) -> int:
        """Tokens that have a successor."""
        return len(self.tokens) - 1

    @property
    def windows(self) -> int:
        """Windows per epoch."""
        return -(-self.positions // self.context)

    def epochs(self, index: int) -> float:
        """Epochs completed before batch `index`."""
        return index * self.batch / self.windows

    def make(self, index: int) -> Batch:
        """Batch `index`: the same for the same seed and index, in whatever order batches are requested."""
        if not is_integer(index) or index < 0:
            raise TextError(f"expected a batch index ≥ 0, got {index!r}.")
        tokens, targets = (np.empty((self.batch, self.context), dtype=np.int64) for _ in range(2))
        for row in range(self.batch):
            epoch, number = divmod(index * self.batch + row, self.windows)
            offset, order = _epoch(self.seed, epoch, self.positions, self.windows)
            first = int(order[number]) * self.context
            tokens[row], targets[row] = self._window((offset + first) % self.positions)
            targets[row, self.positions - first :] = IGNORED
        return Batch(tokens, targets)

    def _window(self, begin: int) -> tuple[TokenSequence, TokenSequence]:
        end = begin + self.context
        if end <= self.positions:
            return self.tokens[begin:end], self.tokens[begin + 1 : end + 1]
        excess = end - self.positions  # wraps at most once, since the text is longer than a window
        inputs = np.concatenate([self.tokens[begin : self.positions], self.tokens[:excess]])
        return inputs, np.concatenate([self.tokens[begin + 1 :], self.tokens[1 : excess + 1]])


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, positions: int, windows: int) -> tuple[int, npt.NDArray[np.int64]]:
    """The offset of the first window, and the order of the windows."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), epoch], dtype=np.uint64)))
    return int(rng.integers(positions)), rng.permutation(windows)


@final
@dataclass(frozen=True, eq=False)
class Windows:
    """Windows for evaluation, in order: every token but the first is a target exactly once.

    Windows begin `stride` positions apart; by default `context`, so that none overlap. With a shorter stride only the
    last `stride` targets of a window count (all of the first window's), so that each has at least context - stride
    tokens before it. The last window is padded with zeros after the text, where a causal model cannot see them.
    """

    tokens: TokenSequence
    context: int
    batch: int = 1
    stride: int | None = None
    step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", self.context if self.stride is None else self.stride)
        _require(self.tokens, context=self.context, batch=self.batch, stride=self.step)
        if self.step > self.context:
            raise TextError(f"expected stride ≤ context = {self.context:,}, got {self.step:,}.")
        if len(self.tokens) < 2:
            raise TextError(f"the text is too short: expected at least 2 tokens, got {len(self.tokens)}.")

    @property
    def windows(self) -> int:
        return 1 + max(0, -(-(len(self.tokens) - 1 - self.context) // self.step))

    def __len__(self) -> int:
        """Number of batches; the last one may have fewer rows."""
        return -(-self.windows // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, range(len(self)))

    def make(self, index: int) -> Batch:
        """Batch `index`, from 0 to len(self) - 1."""
        if not is_integer(index) or not 0 <= index < len(self):
            raise TextError(f"expected a batch index from 0 to {len(self) - 1:,}, got {index!r}.")
        numbers = range(index * self.batch, min((index + 1) * self.batch, self.windows))
        tokens: Tokens = np.zeros((len(numbers), self.context), dtype=np.int64)
        targets: Tokens = np.full((len(numbers), self.context), IGNORED, dtype=np.int64)
        for row, number in enumerate(numbers):
            begin = number * self.step
            window = self.tokens[begin : begin + self.context + 1]
            counted = self.context - self.step if number else 0  # targets of the previous window
            tokens[row, : len(window) - 1] = window[:-1]
            targets[row, counted : len(window) - 1] = window[1 + counted :]
        return Batch(tokens, targets)


@final
@dataclass(frozen=True, eq=False)
class LastTargets:
    """Windows that end at the same tokens whatever their length: how much does a longer context help?

    They end `step` positions apart, the first after `longest` of them. Only the last `scored` targets of each count, so
    that these have all of the context before them, or up to scored - 1 tokens less.
    """

    tokens: TokenSequence
    context: int
    longest: int
    batch: int = 1
    step: int = 64
    scored: int = 8

    def __post_init__(self) -> None:
        _require(self.tokens, context=self.context, longest=self.longest, batch=self.batch, step=self.step,
                 scored=self.scored)  # fmt: skip
        if not self.scored <= self.context <= self.longest < len(self.tokens):
            raise TextError(
                f"expected scored ≤ context ≤ longest < {len(self.tokens):,} tokens, got {self.scored}, "
                f"{self.context:,} and {self.longest:,}. Use a shorter context, or a longer text."
            )

    @property
    def windows(self) -> int:
        return 1 + (len(self.tokens) - 1 - self.longest) // self.step

    def __len__(self) -> int:
        """Number of batches; the last one may have fewer rows."""
        return -(-self.windows // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, range(len(self)))

    def make(self, index: int) -> Batch:
        """Batch `index`, from 0 to len(self) - 1."""
        if not is_integer(index) or not 0 <= index < len(self):
            raise TextError(f"expected a batch index from 0 to {len(self) - 1:,}, got {index!r}.")
        numbers = range(index * self.batch, min((index + 1) * self.batch, self.windows))
        rows = [self.tokens[end - self.context : end + 1] for end in (self.longest + n * self.step for n in numbers)]
        windows = np.stack(rows).astype(np.int64)
        targets: Tokens = np.full((len(rows), self.context), IGNORED, dtype=np.int64)
        targets[:, -self.scored :] = windows[:, -self.scored :]
        return Batch(windows[:, :-1], targets)


def _require(tokens: TokenSequence, **sizes: int) -> None:
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise TextError(f"expected a 1-D array of token ids, got shape {tokens.shape} of {tokens.dtype}.")
    for name, value in sizes.items():
        if not is_integer(value) or value < 1:
            raise TextError(f"expected {name} to be an integer ≥ 1, got {value!r}.")


def perplexity(loss: float) -> float:
    """The perplexity of a mean loss in nats; infinite where it overflows."""
    return math.exp(loss) if loss < _LARGEST_LOSS else math.inf
