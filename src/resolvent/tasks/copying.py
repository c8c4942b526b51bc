"""Copy: say again what was said, however long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from resolvent.tasks.task import BEGIN, END, FIRST_SYMBOL, IGNORED, Batch, Task, Tokens, require


@final
@dataclass(frozen=True)
class Copy(Task):
    """A sequence between marks, then the same sequence.

        tokens    <  a  b  c  d  >  a  b  c
        targets                  a  b  c  d

    All of it must pass through what the layers keep: the hardest case for a small state. Lengths are drawn for each
    batch, from `least` to `length`.
    """

    name = "copy"

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
        said = rng.integers(FIRST_SYMBOL, self.vocab_size, (count, size))
        mark = np.ones((count, 1), dtype=np.int64)
        tokens = np.concatenate([BEGIN * mark, said, END * mark, said[:, :-1]], 1)
        targets = np.full_like(tokens, IGNORED)
        targets[:, size + 1 :] = said
        place = np.full_like(tokens, IGNORED)
        place[:, size + 1 :] = np.arange(size)
        return Batch(tokens, targets, {"place": place})

    def solve(self, tokens: Tokens) -> Tokens:
        answers = np.full_like(tokens, IGNORED)
        for row, out in zip(tokens, answers, strict=True):
            size = int(np.flatnonzero(row == END)[0]) - 1
            out[size + 1 :] = row[1 : size + 1]
        return answers

    def word(self, token: int) -> str:
        return {BEGIN: "<", END: ">"}.get(token, str(token))

    def size_of(self, tokens: Tokens) -> int:
        return int(tokens.shape[1] - 1) // 2
