"""Copy: repeat a sequence of any length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

import numpy as np

from resolvent.batch import IGNORED, Batch, Tokens
from resolvent.tasks.synthetic import BEGIN, END, FIRST_SYMBOL, Chances, Synthetic, chance_of_commonest, no_chances
from resolvent.tasks.task import require


@final
@dataclass(frozen=True)
class Copy(Synthetic):
    """A sequence between marks, then the same sequence.

        tokens    <  a  b  c  d  >  a  b  c
        targets                  a  b  c  d

    All of it must pass through what the layers keep: the hardest case for a small state. Lengths are drawn for each
    batch, from `least` to `length`.
    """

    name = "copy"
    shortcut = "the commonest of the symbols that are still to be copied"

    length: int = 128
    least: int = 4

    def __post_init__(self) -> None:
        require(self.vocab_size > FIRST_SYMBOL + 1, f"copy needs at least 2 symbols beside {FIRST_SYMBOL} marks: "
                f"expected vocab_size ≥ {FIRST_SYMBOL + 2}, got {self.vocab_size}.")  # fmt: skip
        require(1 <= self.least <= self.length, f"expected 1 ≤ least ≤ length, got {self.least} and {self.length}.")

    @property
    def longest(self) -> int:
        return 2 * self.length + 1

    def sizes(self, divisor: int) -> tuple[int, int]:
        most = max(self.length // divisor, 1)
        return min(self.least, most), most

    def make(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        symbols = rng.integers(FIRST_SYMBOL, self.vocab_size, (count, size))
        mark = np.ones((count, 1), dtype=np.int64)
        tokens = np.concatenate([BEGIN * mark, symbols, END * mark, symbols[:, :-1]], 1)
        targets = np.full_like(tokens, IGNORED)
        targets[:, size + 1 :] = symbols
        position = np.full_like(tokens, IGNORED)
        position[:, size + 1 :] = np.arange(size)
        return Batch(tokens, targets, {"position": position})

    def solve(self, tokens: Tokens) -> Tokens:
        answers = np.full_like(tokens, IGNORED)
        for row, out in zip(tokens, answers, strict=True):
            size = int(np.flatnonzero(row == END)[0]) - 1
            out[size + 1 :] = row[1 : size + 1]
        return answers

    def guesses(self, batch: Batch) -> Chances:
        chances = no_chances(batch)
        size = (batch.tokens.shape[1] - 1) // 2
        chances["constant"][:, size + 1 :] = 1 / (self.vocab_size - FIRST_SYMBOL)
        for row, symbols in enumerate(batch.targets[:, size + 1 :].tolist()):
            shown = Counter(symbols)
            left = shown.copy()
            for i, target in enumerate(symbols, size + 1):
                chances["shown"][row, i] = shown[target] / size
                chances["commonest"][row, i] = chance_of_commonest(shown, target)
                chances["shortcut"][row, i] = chance_of_commonest(left, target)
                left[target] -= 1
        return chances

    def word(self, token: int) -> str:
        return {BEGIN: "<", END: ">"}.get(token, str(token))
