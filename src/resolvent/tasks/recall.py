"""Associative recall, and recall over several hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from resolvent.tasks.task import BLANK, IGNORED, Batch, Task, Tokens, distinct, require, shuffled, spread


@dataclass(frozen=True)
class Pairs(Task):
    """Keys with values, at random places, then queries at random places.

    Of a vocabulary of V, 0 is blank, 1 … V/2 - 1 are keys, V/2 … V - 1 values. Each key stands once, followed by its
    value; each is asked once, in random order; blanks lie anywhere between. Sequences have `length / pairs` tokens per
    pair, so `length` at most.
    """

    pairs: int = 64
    length: int = 256

    def __post_init__(self) -> None:
        keys = self.vocab_size // 2 - 1
        require(1 <= self.pairs <= keys, f"keys must differ: expected at most {keys} pairs for a vocabulary of "
                f"{self.vocab_size}, and at least 1, got {self.pairs}.")  # fmt: skip
        require(self.length >= 3 * self.pairs, f"a pair and its query take 3 tokens: expected length ≥ "
                f"{3 * self.pairs} for {self.pairs} pairs, got {self.length}.")  # fmt: skip

    @property
    def longest(self) -> int:
        return self.length

    def sizes(self, divisor: int) -> tuple[int, int]:
        most = max(self.pairs // divisor, 1)
        return min(2, most), most

    def place(
        self, rng: np.random.Generator, keys: Tokens, values: Tokens, answers: Tokens
    ) -> tuple[Tokens, Tokens, Tokens, Tokens]:
        """Tokens and targets (B, N) with pairs and queries spread over them; where keys stand, and which is asked."""
        count, pairs = keys.shape
        n = max(self.length * pairs // self.pairs, 3 * pairs)
        first = 2 * pairs + 2 * (n - 3 * pairs) // 3  # room for the pairs; blanks are shared out evenly
        tokens = np.full((count, n), BLANK, dtype=np.int64)
        targets = np.full((count, n), IGNORED, dtype=np.int64)
        at = spread(rng, count, pairs, 2, first)
        np.put_along_axis(tokens, at, keys, 1)
        np.put_along_axis(tokens, at + 1, values, 1)
        asked = shuffled(rng, count, pairs)
        queries = first + spread(rng, count, pairs, 1, n - first)
        np.put_along_axis(tokens, queries, np.take_along_axis(keys, asked, 1), 1)
        np.put_along_axis(targets, queries, np.take_along_axis(answers, asked, 1), 1)
        return tokens, targets, at, np.stack([queries, asked])

    def word(self, token: int) -> str:
        half = self.vocab_size // 2
        return "·" if token == BLANK else f"k{token}" if token < half else f"v{token - half}"

    def size_of(self, tokens: Tokens) -> int:
        return int(tokens.shape[1] * self.pairs / self.length + 0.5)

    def solve(self, tokens: Tokens) -> Tokens:
        """Read from left to right, remember what follows each key the first time, look up the others."""
        answers = np.full_like(tokens, IGNORED)
        half = self.vocab_size // 2
        for row, out in zip(tokens.tolist(), answers, strict=True):
            known: dict[int, int] = {}
            i = 0
            while i < len(row):
                token = row[i]
                if token == BLANK:
                    i += 1
                elif token not in known:
                    value = row[i + 1]
                    known[token] = value if value >= half else known[value]
                    if value < half:
                        out[i + 1] = known[token]
                    i += 2
                else:
                    out[i] = known[token]
                    i += 1
        return answers


@final
@dataclass(frozen=True)
class Recall(Pairs):
    """What belonged to this key?

        tokens    k3 v3  ·  k1 v1 k2 v2  ·  ·  k1  ·  k3 k2
        targets                               v1     v3 v2

    The way back from a query to its value is as long as chance makes it, so no fixed stride helps.
    """

    name = "recall"

    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        half = self.vocab_size // 2
        keys = distinct(rng, count, size, 1, half)
        values = rng.integers(half, self.vocab_size, (count, size))
        tokens, targets, at, (queries, asked) = self.place(rng, keys, values, values)
        distance = np.full_like(tokens, IGNORED)
        np.put_along_axis(distance, queries, queries - np.take_along_axis(at, asked, 1) - 1, 1)
        return Batch(tokens, targets, {"distance": distance})


@final
@dataclass(frozen=True)
class MultiHop(Pairs):
    """What belonged to this key, if what belonged to it is a key itself: follow it to the end.

        tokens    k1 v1  k2 k1  ·  k3 v3  k4 k2  ·  k4  k3  k1  k2
        targets             v1               v1     v1  v3  v1  v1
        hops                 1                2      3   1   1   2

    With probability `chance` the value of a pair is an earlier key, taken by no other pair; the first third of the
    pairs keep true values, so that chains end in many places and "the first value" is a poor guess. Where a key stands
    in place of a value, what it leads to is expected there, too. Hops count the pairs that have to be looked up.
    """

    name = "multihop"

    chance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.chance <= 1, f"expected chance from 0 to 1, got {self.chance}.")

    def sizes(self, divisor: int) -> tuple[int, int]:
        most = max(self.pairs // divisor, 1)
        return min(3, most), most

    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        half = self.vocab_size // 2
        keys = distinct(rng, count, size, 1, half)
        values = rng.integers(half, self.vocab_size, (count, size))
        answers, hops = values.copy(), np.ones_like(values)
        taken = np.zeros((count, size), dtype=bool)
        rows = np.arange(count)
        for i in range((size + 2) // 3, size):  # each pair may go on from an earlier one that no other goes on from
            target = np.where(taken[:, :i], -1.0, rng.random((count, i))).argmax(1)
            linked = (rng.random(count) < self.chance) & ~taken[rows, target]
            who, whom = rows[linked], target[linked]
            taken[who, whom] = True
            values[who, i] = keys[who, whom]
            answers[who, i] = answers[who, whom]
            hops[who, i] = hops[who, whom] + 1
        tokens, targets, at, (queries, asked) = self.place(rng, keys, values, answers)
        counted = np.full_like(tokens, IGNORED)
        np.put_along_axis(counted, queries, np.take_along_axis(hops, asked, 1), 1)
        linked = values < half
        row, pair = np.nonzero(linked)
        targets[row, at[row, pair] + 1] = answers[row, pair]
        counted[row, at[row, pair] + 1] = hops[row, pair] - 1
        return Batch(tokens, targets, {"hops": counted})
