"""Patterns in which A and B read the same positions, and where these are cached: what the operator runs on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np

from resolvent.patterns.checks import require_length
from resolvent.patterns.pattern import Direct, Needs, Normalize, Pattern, modifiers
from resolvent.patterns.strides import Contiguous, FunctionStrides, Integers, Strides


class Stage(Pattern):
    """One set of positions for each token, which A reads, or B, or both; each position has a static cache slot."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (self,)

    @property
    @abstractmethod
    def contiguous_columns(self) -> bool:
        """Whether every position is read by a contiguous run of positions, starting with its successor."""

    @abstractmethod
    def life(self, j: int) -> int | float:
        """The distance from position j to the last token that reads it; `math.inf` if there is no last one."""

    @abstractmethod
    def period(self, n: int | str) -> int:
        """The shift, in positions, under which the pattern on n tokens repeats; n if it does not."""

    @abstractmethod
    def slots(self, n: int | str) -> int:
        """The number of cache slots needed to decode n tokens.

        >>> from resolvent.patterns import pattern
        >>> pattern("exponential").slots("4k"), pattern("exponential+cache").slots("4k")
        (4095, 12)
        """

    @abstractmethod
    def slot(self, j: int) -> int:
        """The cache slot of position j, the same for every n; -1 if no later token reads j."""

    @abstractmethod
    def slots_of(self, positions: Integers) -> Integers:
        """`slot(j)` for each position."""

    @abstractmethod
    def last_readers(self, positions: Integers) -> Integers:
        """The last token that reads each position; beyond any sequence if there is no last one."""

    @property
    @abstractmethod
    def reuses_slots(self) -> bool:
        """Whether slots are reused for later positions."""

    @property
    @abstractmethod
    def reads_several(self) -> bool:
        """Whether some token reads more than one position."""

    @abstractmethod
    def cache_efficient(self) -> Stage:
        """The version that only reads positions which the previous token still held: `+cache`."""

    @property
    def farthest(self) -> int | None:
        """The longest distance at which a token reads; None if there is none."""
        return None

    def needs(self, normalize: Normalize = "gate") -> Needs:
        direct, joint = self.direct == "all", normalize == "joint" and self.recurrent
        b = self.recurrent and self.reads_several
        kept = {"values": direct, "keys_a": direct, "outputs": self.recurrent, "keys_b": b, "logs": joint}
        return Needs(direct or joint, b, self.recurrent, tuple(name for name, keep in kept.items() if keep))

    def modified(self, direct: Direct, recurrent: bool) -> Self:
        """The same reads, of A (or its diagonal only) and of B (or not)."""
        return replace(self, direct=direct, recurrent=recurrent)  # type: ignore[type-var]  # all of them are dataclasses

    def with_diagonal_a(self) -> Self:
        return self.modified("diagonal", self.recurrent)

    def widest_row(self, n: int | str) -> int:
        if self.is_shifted(n := require_length(n)):
            return self.reads(n - 1)
        if self.contiguous_columns:
            return int(self.occupancy(n).max())
        return super().widest_row(n)

    def total_reads(self, n: int | str) -> int:
        """The sum of `reads(i)` over i < n, computed by columns where that is possible."""
        n = require_length(n)
        if self.is_shifted(n):
            strides = self.offsets(n)
            return len(strides) * n - int(strides.sum())
        if self.contiguous_columns:
            return int(np.minimum(self.lives(n), n - 1 - np.arange(n)).sum())
        return super().total_reads(n)

    def held(self, position: int) -> Integers:
        """The positions before `position` that it or a later token reads, ascending."""
        return _held(self, position)

    def table(self, n: int | str) -> Integers:
        """The positions that each token reads, nearest first: the layout of coefficients.

        Returns:
            Shape (n, W), W the widest row; padded with -1.

        >>> from resolvent.patterns import pattern
        >>> pattern("order:2").table(4)
        array([[-1, -1],
               [ 0, -1],
               [ 1,  0],
               [ 2,  1]])
        """
        n = require_length(n)
        rows = [self.sources(i)[::-1] for i in range(n)]
        table = np.full((n, max(map(len, rows))), -1, dtype=np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        return table


@lru_cache(maxsize=64)
def _held(stage: Stage, position: int) -> Integers:
    if position == 0:
        return np.empty(0, dtype=np.int64)
    if stage.contiguous_columns:
        return stage.sources(position)
    farthest = stage.farthest
    positions = np.arange(0 if farthest is None else max(position - farthest, 0), position)
    return positions if stage.is_shifted(position + 1) else positions[stage.last_readers(positions) >= position]


@dataclass(frozen=True, repr=False)
class Strided(Stage):
    """Generated by the distances f(0) < f(1) < … in `strides`."""

    strides: Strides
    direct: Direct = "all"
    recurrent: bool = True

    def offsets(self, n: int | str) -> Integers:
        return self.strides.below(require_length(n))

    @property
    def is_dense(self) -> bool:
        return self.strides == Contiguous(None)

    @property
    def is_first_order(self) -> bool:
        return self.recurrent and self.direct == "diagonal" and self.strides.last == 1

    @property
    def has_spelling(self) -> bool:
        return not isinstance(self.strides, FunctionStrides)

    @property
    def farthest(self) -> int | None:
        return self.strides.last

    @property
    def reads_several(self) -> bool:
        """Whether there are at least two strides.

        That holds for cache-efficient patterns, too: positions of the second lattice are still alive when the next one
        of the first lattice is read. (Counting the reads of a distant token instead would list all strides below it,
        and miss longer ones.)
        """
        last = self.strides.last
        if isinstance(self.strides, Contiguous):  # of any size, which is not listed
            return last is None or last > 1
        return last is None or len(self.strides.below(last)) > 0


def spell(strides: Strides, direct: Direct, recurrent: bool) -> str:
    """The canonical spelling of a translation-invariant pattern, which `resolvent.pattern` parses."""
    match strides, direct, recurrent:
        case Contiguous(size=None), "all", False:
            return "attention"
        case Contiguous(size=int(size)), "all", False:
            return f"local:{size + 1}"
        case Contiguous(size=1), "diagonal", True:
            return "first-order"
    return strides.spelling + modifiers(direct, recurrent)
