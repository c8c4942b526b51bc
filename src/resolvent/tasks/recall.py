"""Associative recall, and recall over several hops."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.batch import IGNORED, Batch, Tokens
from resolvent.tasks.synthetic import (
    BLANK,
    Chances,
    Synthetic,
    chance_of_commonest,
    distinct,
    no_chances,
    scattered,
    shuffled,
)
from resolvent.tasks.task import require, require_one_of

PLACEMENTS = ("adjacent", "scattered")
CHAINS = ("balanced", "literal")


@dataclass(frozen=True)
class Pairs(Synthetic):
    """Keys with values, at random positions, then queries at random positions.

    Of a vocabulary of V, 0 is blank, 1 … V/2 - 1 are keys, V/2 … V - 1 values. Each key stands once, before its value;
    each is asked once, in random order; blanks lie anywhere between. Sequences have `length / pairs` tokens per pair,
    so `length` at most.

    placement  "adjacent": a value follows its key at once; "scattered": after any number of blanks, so that no
               distance binds the two
    repeats    values are drawn with replacement, so that one of them may stand out; else all differ
    """

    pairs: int = 64
    length: int = 256
    placement: str = field(default="adjacent", kw_only=True)
    repeats: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        keys = self.vocab_size // 2 - 1
        require(1 <= self.pairs <= keys, f"keys must differ: expected at most {keys} pairs for a vocabulary of "
                f"{self.vocab_size}, and at least 1, got {self.pairs}.")  # fmt: skip
        require(self.length >= 3 * self.pairs, f"a pair and its query take 3 tokens: expected length ≥ "
                f"{3 * self.pairs} for {self.pairs} pairs, got {self.length}.")  # fmt: skip
        require_one_of("placement", self.placement, PLACEMENTS)
        require(isinstance(self.repeats, bool), f"expected repeats true or false, got {self.repeats!r}.")

    @property
    def longest(self) -> int:
        return self.length

    def sizes(self, divisor: int) -> tuple[int, int]:
        most = max(self.pairs // divisor, 1)
        return min(2, most), most

    def arrange(
        self, rng: np.random.Generator, keys: Tokens, values: Tokens, answers: Tokens
    ) -> tuple[Tokens, Tokens, Tokens, Tokens]:
        """Tokens and targets (B, N), positions of the values (B, pairs), and queries with what they ask for."""
        count, pairs = keys.shape
        n = max(self.length * pairs // self.pairs, 3 * pairs)
        first = 2 * pairs + 2 * (n - 3 * pairs) // 3  # tokens for the pairs; blanks are shared out evenly
        tokens = np.full((count, n), BLANK, dtype=np.int64)
        targets = np.full((count, n), IGNORED, dtype=np.int64)
        if self.placement == "adjacent":
            at = scattered(rng, count, pairs, 2, first)
            after = at + 1
        else:
            both = scattered(rng, count, 2 * pairs, 1, first)
            at, after = both[:, ::2], both[:, 1::2]
        np.put_along_axis(tokens, at, keys, 1)
        np.put_along_axis(tokens, after, values, 1)
        asked = shuffled(rng, count, pairs)
        queries = first + scattered(rng, count, pairs, 1, n - first)
        np.put_along_axis(tokens, queries, np.take_along_axis(keys, asked, 1), 1)
        np.put_along_axis(targets, queries, np.take_along_axis(answers, asked, 1), 1)
        return tokens, targets, after, np.stack([queries, asked])

    def word(self, token: int) -> str:
        half = self.vocab_size // 2
        return "·" if token == BLANK else f"k{token}" if token < half else f"v{token - half}"

    def draw_values(self, rng: np.random.Generator, count: int, size: int) -> Tokens:
        low, high = self.vocab_size // 2, self.vocab_size
        return rng.integers(low, high, (count, size)) if self.repeats else distinct(rng, count, size, low, high)

    def solve(self, tokens: Tokens) -> Tokens:
        """Read from left to right, remember what belongs to each key the first time, look up the others."""
        answers = np.full_like(tokens, IGNORED)
        half = self.vocab_size // 2
        for row, out in zip(tokens.tolist(), answers, strict=True):
            known: dict[int, int] = {}
            key = BLANK  # whose value comes next
            for i, token in enumerate(row):
                if token == BLANK:
                    continue
                if key != BLANK:
                    known[key] = token if token >= half else known[token]
                    if token < half:
                        out[i] = known[token]
                    key = BLANK
                elif token in known:
                    out[i] = known[token]
                else:
                    key = token
        return answers

    def guesses(self, batch: Batch) -> Chances:
        """The commonest is the value that most keys lead to, so far."""
        chances = no_chances(batch, ("constant", "shown", "commonest"))
        half = self.vocab_size // 2
        chances["constant"][batch.targets != IGNORED] = 1 / (self.vocab_size - half)
        answers = self.solve(batch.tokens)
        for row, (tokens, ends) in enumerate(zip(batch.tokens.tolist(), answers.tolist(), strict=True)):
            shown: Counter[int] = Counter()
            reached: Counter[int] = Counter()
            known = set()
            key = BLANK
            for i, (token, end) in enumerate(zip(tokens, ends, strict=True)):
                if end != IGNORED:
                    chances["shown"][row, i] = shown[end] / shown.total()
                    chances["commonest"][row, i] = chance_of_commonest(reached, end)
                if token == BLANK:
                    continue
                if key != BLANK:
                    shown[token] += token >= half
                    reached[token if token >= half else end] += 1
                    known.add(key)
                    key = BLANK
                elif token not in known:
                    key = token
        return chances | {"shortcut": self.take_shortcut(batch, chances)}

    @abstractmethod
    def take_shortcut(self, batch: Batch, chances: Chances) -> npt.NDArray[np.float64]:
        """How likely the shortcut is right, from what the simpler guesses are."""


@final
@dataclass(frozen=True)
class Recall(Pairs):
    """What belonged to this key?

        tokens    k3 v3  ·  k1 v1 k2 v2  ·  ·  k1  ·  k3 k2
        targets                               v1     v3 v2

    The way back from a query to its value is as long as chance makes it, so no fixed stride helps.
    """

    name = "recall"
    shortcut = "the commonest value"

    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        half = self.vocab_size // 2
        keys = distinct(rng, count, size, 1, half)
        values = self.draw_values(rng, count, size)
        tokens, targets, after, (queries, asked) = self.arrange(rng, keys, values, values)
        distance = np.full_like(tokens, IGNORED)
        np.put_along_axis(distance, queries, queries - np.take_along_axis(after, asked, 1), 1)
        return Batch(tokens, targets, {"distance": distance})

    def take_shortcut(self, batch: Batch, chances: Chances) -> npt.NDArray[np.float64]:  # noqa: ARG002
        return chances["commonest"]


@final
@dataclass(frozen=True)
class MultiHop(Pairs):
    """What belonged to this key, if what belonged to it is a key itself: follow it to the end.

        tokens    k1 v1  k2 k1  ·  k3 v3  k4 k2  ·  k4  k3  k1  k2
        targets             v1               v1     v1  v3  v1  v1
        hops                 1                2      3   1   1   2

    With probability `chance` the value of a pair is an earlier key. Where a key stands for a value, the end of its
    chain is expected there, too. Hops count the pairs that have to be looked up; `query` is 1 where a key is asked
    for and 0 where it stands for a value.

    chains  "literal": any earlier key, nothing else, as the paper has it; "balanced": one taken by no other pair, and
            the first third of the pairs keep true values, so that chains have many ends and "the end of the longest
            chain" is a poor guess
    """

    name = "multihop"
    shortcut = "one hop looked up, beyond it the value that most keys lead to"

    chance: float = 0.5
    chains: str = field(default="balanced", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.chance <= 1, f"expected chance from 0 to 1, got {self.chance}.")
        require_one_of("chains", self.chains, CHAINS)

    def sizes(self, divisor: int) -> tuple[int, int]:
        most = max(self.pairs // divisor, 1)
        return min(3, most), most

    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        half = self.vocab_size // 2
        keys = distinct(rng, count, size, 1, half)
        values = self.draw_values(rng, count, size)
        answers, hops = values.copy(), np.ones_like(values)
        free = np.ones((count, size), dtype=bool)  # keys that a later pair may take for its value
        rows = np.arange(count)
        for i in range(1 if self.chains == "literal" else (size + 2) // 3, size):
            target = np.where(free[:, :i], rng.random((count, i)), -1.0).argmax(1)
            linked = (rng.random(count) < self.chance) & free[rows, target]
            who, whom = rows[linked], target[linked]
            free[who, whom] = self.chains == "literal"
            values[who, i] = keys[who, whom]
            answers[who, i] = answers[who, whom]
            hops[who, i] = hops[who, whom] + 1
        tokens, targets, after, (queries, asked) = self.arrange(rng, keys, values, answers)
        counted, query = np.full_like(tokens, IGNORED), np.full_like(tokens, IGNORED)
        np.put_along_axis(counted, queries, np.take_along_axis(hops, asked, 1), 1)
        np.put_along_axis(query, queries, 1, 1)
        row, pair = np.nonzero(values < half)
        targets[row, after[row, pair]] = answers[row, pair]
        counted[row, after[row, pair]] = hops[row, pair] - 1
        query[row, after[row, pair]] = 0
        return Batch(tokens, targets, {"hops": counted, "query": query})

    def take_shortcut(self, batch: Batch, chances: Chances) -> npt.NDArray[np.float64]:
        return np.where(batch.slices["hops"] == 1, 1.0, chances["commonest"])
