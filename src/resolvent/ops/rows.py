"""Which rows of the tensors are which tokens: packed sequences, and what is known of tokens seen before.

A call handles `new` rows. `x`, `ka`, `kb` and `y` have `known` more in front: the rows kept from the tokens before
`position`, in the order of their positions. Backends see row numbers only; positions stay here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from resolvent.analysis.growth import most_reads
from resolvent.analysis.kernels import list_by_last_reader
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers

Table = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True)
class Rows:
    """Sequence s is the new rows `cuts[s]` … `cuts[s + 1] - 1`. With `position > 0` there is exactly one."""

    pattern: Pattern
    cuts: tuple[int, ...]
    position: int = 0

    @property
    def new(self) -> int:
        return self.cuts[-1]

    @cached_property
    def held(self) -> Integers:
        """The positions kept from before: those that a token from `position` on may read."""
        return held(self.pattern, self.position)

    @property
    def known(self) -> int:
        return len(self.held)

    @property
    def longest(self) -> int:
        """Rows of the longest sequence, those known included."""
        return self.known + max((after - before for before, after in pairwise(self.cuts)), default=0)

    @cached_property
    def width(self) -> int:
        """Sources of the widest row: the columns of coefficients."""
        return most_reads(self.pattern, max(self.position + self.longest - self.known, 1))

    @property
    def shifted(self) -> bool:
        """Whether every row reads at the same distances: then `offsets` says it all, and no table is needed."""
        return self.pattern.period(max(self.position + self.longest, 1)) == 1

    @cached_property
    def offsets(self) -> Integers:
        return np.array(self.pattern.offsets(max(self.position + self.longest, 1)))

    @cached_property
    def last_reader(self) -> Integers:
        """For each row of the longest sequence, the last row that reads it (perhaps beyond the end)."""
        end = self.position + self.longest - self.known
        positions = np.concatenate([self.held, np.arange(self.position, end)])
        last: Integers = positions + self.pattern.lives(max(end, 1))[positions] - self.position + self.known
        return last

    @cached_property
    def local_table(self) -> Table:
        """(new rows of the longest sequence, width) rows that each reads, nearest first, -1 beyond.

        A sequence that starts at row `base` reads the rows `base +` these: no row depends on what follows it.
        """
        count = self.longest - self.known
        if self.shifted:
            table = np.arange(self.known, self.longest, dtype=np.int32)[:, None] - self.offsets.astype(np.int32)
            return np.where(table >= 0, table, np.int32(-1))[:, : self.width]
        return list_by_last_reader(self.last_reader, self.known, count, self.width)  # type: ignore[no-any-return]

    @cached_property
    def table(self) -> Table:
        """(new, width): as `local_table`, with all sequences one after another and rows numbered throughout."""
        if len(self.cuts) == 2:
            return self.local_table
        parts = [np.empty((0, self.width), dtype=np.int32)]
        for before, after in pairwise(self.cuts):
            part = self.local_table[: after - before]
            parts.append(np.where(part >= 0, part + np.int32(before), np.int32(-1)))
        return np.concatenate(parts)


@lru_cache(maxsize=64)
def held(pattern: Pattern, position: int) -> Integers:
    """The positions before `position` that it or a later token may read, ascending."""
    if position == 0:
        return np.empty(0, dtype=np.int64)
    if pattern.contiguous_columns:
        return pattern.sources(position)
    last = pattern.strides.last
    return np.arange(0 if last is None else max(position - last, 0), position)


@lru_cache(maxsize=32)
def rows(pattern: Pattern, cuts: tuple[int, ...], position: int = 0) -> Rows:
    """The same object for the same question, so that its tables are worked out once."""
    return Rows(pattern, cuts, position)
