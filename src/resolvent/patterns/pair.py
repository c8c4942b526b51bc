"""Patterns in which A and B read different positions, spelled `A/B`: the framework of the paper in full."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns.checks import require_length
from resolvent.patterns.pattern import Direct, Mask, Pattern, live_counts
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Integers, frozen, power_of_two


@final
@dataclass(frozen=True, repr=False)
class Pair(Pattern):
    """A reads what `a` reads, and B what `b` reads. Made by `pair`, which knows when it is a pattern of one stage.

    The operator runs through both: u = A x without feedback, then y = B y + u with A on the diagonal. What A needs of
    the past (inputs) and what B needs (outputs) are kept in slots of their own.
    """

    a: Stage
    b: Stage
    direct: Direct = field(default="all", init=False)
    recurrent: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.a.direct != "all" or self.a.recurrent or self.b.direct != "diagonal" or not self.b.recurrent:
            raise PatternError("expected A without feedback and B with A on its diagonal: use pair(a, b).")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.a, self.b

    def sources(self, i: int) -> Integers:
        return np.union1d(self.a.sources(i), self.b.sources(i))

    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        return self.a.allows(i, j) | self.b.allows(i, j)

    def widest_row(self, n: int | str) -> int:
        return int(self._row_lengths(require_length(n)).max())

    def total_reads(self, n: int | str) -> int:
        return int(self._row_lengths(require_length(n)).sum())

    def _row_lengths(self, n: int) -> Integers:
        """`reads(i)` for all i < n.

        Rows are only listed where neither side reads all, and one is neither shifted nor contiguous in columns.
        """
        self.require_within(n)
        if any(stage.is_dense for stage in self.stages):
            return np.arange(n)
        if all(stage.contiguous_columns for stage in self.stages):
            return live_counts(self.lives(n))
        if all(stage.is_shifted(n) for stage in self.stages):
            offsets = np.union1d(*(stage.offsets(n) for stage in self.stages))
            return offsets.searchsorted(np.arange(n), side="right")
        longest = power_of_two(n)  # so that few lists serve all lengths
        return _listed_lengths(self, longest if self.limit is None else min(longest, self.limit))[:n]

    def lives(self, n: int | str) -> Integers:
        return np.maximum(self.a.lives(n), self.b.lives(n))

    @property
    def limit(self) -> int | None:
        limits = [stage.limit for stage in self.stages if stage.limit is not None]
        return min(limits, default=None)

    @property
    def has_spelling(self) -> bool:
        return self.a.has_spelling and self.b.has_spelling

    def with_diagonal_a(self) -> Pattern:
        return self.b

    @property
    def spelling(self) -> str:
        return f"{self.a.spelling.replace('+attention', '')}/{self.b.spelling.replace('+diagonal', '')}"

    @property
    def label(self) -> str:
        return f"{self.a.label.replace('+attention', '')}/{self.b.label.replace('+diagonal', '')}"


@lru_cache(maxsize=16)
def _listed_lengths(p: Pair, n: int) -> Integers:
    return frozen(np.array([p.reads(i) for i in range(n)], dtype=np.int64))


def pair(a: Pattern, b: Pattern) -> Pattern:
    """The pattern with the A of the one and the B of the other; of one stage, where that says it.

    >>> from resolvent.patterns import pattern
    >>> pattern("exponential/exponential"), pattern("first-order/quadratic"), pattern("dense/attention")
    (pattern('exponential'), pattern('quadratic+diagonal'), pattern('attention'))
    """
    first, last = a.stages[0], b.stages[-1]
    if not b.recurrent:
        if a.direct == "diagonal":
            raise PatternError(f"'{a}/{b}' reads nothing but itself: expected an A with offsets, or a B with feedback.")
        return first.modified("all", False)
    if a.direct == "diagonal":
        return last.modified("diagonal", True)
    if first.modified("all", True) == last.modified("all", True):
        return first.modified("all", True)
    return Pair(first.modified("all", False), last.modified("diagonal", True))
