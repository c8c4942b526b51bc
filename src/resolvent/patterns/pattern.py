"""What every pattern answers: who reads whom, for how long, and where a decoder keeps it.

Positions are 0-based everywhere in the public interface. The mathematics of cache-efficient patterns is 1-based
(docs/theory.md); `cache_efficient.py` shifts at its border and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from resolvent.patterns.errors import PatternError, require_length
from resolvent.patterns.strides import Contiguous, Integers, Strides
from resolvent.patterns.value import Value

Direct = Literal["all", "diagonal"]
Part = Literal["reads", "a", "b"]
Mask = npt.NDArray[np.bool_]

_LARGEST_MASK = 32_768


@dataclass(frozen=True, repr=False)
class Pattern(Value, ABC):
    """Which past positions each token may read. Frozen and hashable; knows integers, no coefficients.

    `A` acts on the readable positions and on the token itself when `direct == "all"`, on the token alone when
    `direct == "diagonal"`. `B` acts on the readable positions when `recurrent`, and is zero otherwise.
    """

    strides: Strides
    direct: Direct = "all"
    recurrent: bool = True

    @property
    @abstractmethod
    def contiguous_columns(self) -> bool:
        """Whether every position is read by one unbroken run of later positions, from its successor on."""

    def offsets(self, n: int) -> Integers:
        """The strides f(k) < n that generate the pattern (for cache-efficient ones: before rounding)."""
        return self.strides.below(require_length(n))

    @abstractmethod
    def sources(self, i: int) -> Integers:
        """The past positions that token i may read, ascending, without repeats."""

    @abstractmethod
    def reads(self, i: int) -> int:
        """How many past positions token i reads: `len(sources(i))`."""

    @abstractmethod
    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        """Whether token i may read position j, elementwise over arrays of positions."""

    @abstractmethod
    def life(self, j: int) -> int | float:
        """How many tokens on position j is last read: by token `j + life(j)`. `math.inf` if there is no last one."""

    @abstractmethod
    def lives(self, n: int) -> Integers:
        """`life(j)` for all j < n, exact as far as readers below n can tell and at most n."""

    @abstractmethod
    def period(self, n: int) -> int:
        """The pattern on n tokens repeats when shifted by this many positions."""

    @abstractmethod
    def slots(self, n: int) -> int:
        """How many slots a decoder needs for n tokens: every `slot(j)` that is read again lies below it."""

    @abstractmethod
    def slot(self, j: int) -> int:
        """Where a decoder keeps position j, the same for every n; -1 if no later token reads j."""

    @abstractmethod
    def cache_efficient(self) -> Pattern:
        """The version that only reads what the previous token still held: `+cache`."""

    def table(self, n: int) -> Integers:
        """(n, W) readable positions of each token, nearest first, padded with -1: the layout of coefficients."""
        n = require_length(n)
        rows = [self.sources(i)[::-1] for i in range(n)]
        table = np.full((n, max(map(len, rows))), -1, dtype=np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        return table

    def mask(self, n: int, part: Part = "reads") -> Mask:
        """(n, n) booleans: `mask[i, j]` where i reads j; `part` "a" or "b" for the non-zeros of A or B."""
        n = require_length(n)
        if n > _LARGEST_MASK:
            raise PatternError(
                f"mask(n) is an n × n array: expected n ≤ {_LARGEST_MASK:,}, got {n:,}. "
                f"Ask sources(i) for one row, or allows(i, j) for single entries."
            )
        if part not in ("reads", "a", "b"):
            raise PatternError(f"expected part 'reads', 'a' or 'b', got {part!r}.")
        mask = np.zeros((n, n), dtype=np.bool_)
        if (part == "b" and not self.recurrent) or (part == "a" and self.direct == "diagonal"):
            pass
        else:
            for i in range(n):
                mask[i, self.sources(i)] = True
        if part == "a":
            np.fill_diagonal(mask, True)
        return mask

    def draw(self, n: int = 16) -> str:
        """The first n rows as text: a row is a token, a column a position it may read."""
        both, direct, feedback, nothing = "■", "□", "◆", "·"
        a, b = self.mask(n, "a"), self.mask(n, "b")
        cells = np.where(a & b, both, np.where(a, direct, np.where(b, feedback, nothing)))
        cells[np.triu_indices(n, 1)] = " "
        legend = [(both, "A and B"), (direct, "A only"), (feedback, "B only"), (nothing, "not read")]
        shown = ", ".join(f"{mark} {meaning}" for mark, meaning in legend if mark in cells)
        return "\n".join([f"{self}, {n} tokens: {shown}", *(" ".join(row).rstrip() for row in cells)])

    def __repr__(self) -> str:
        return f"pattern('{self}')"


def spell(strides: Strides, direct: Direct, recurrent: bool) -> str:
    """The one name of a translation-invariant pattern, as `resolvent.pattern` reads it."""
    match strides, direct, recurrent:
        case Contiguous(size=None), "all", False:
            return "attention"
        case Contiguous(size=int(size)), "all", False:
            return f"local:{size + 1}"
        case Contiguous(size=1), "diagonal", True:
            return "first-order"
    diagonal = "+diagonal" if direct == "diagonal" else ""
    return strides.spelling + diagonal + ("" if recurrent else "+attention")
