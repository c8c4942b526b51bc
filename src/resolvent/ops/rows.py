"""Which rows of the tensors are which tokens: packed sequences, and what is known of tokens seen before.

A call handles `new` rows. `x`, `ka`, `kb` and `y` have `known` more in front: the rows kept from the tokens before
`position`, in the order of their positions. Backends see row numbers only; positions stay here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from resolvent.kernels import Kernel
from resolvent.patterns import Stage
from resolvent.patterns.strides import Integers

Table = npt.NDArray[np.int32]
T = TypeVar("T")
_list_by_last_reader = Kernel("tables.list_by_last_reader")


@dataclass(frozen=True)
class Rows:
    """Sequence s is the new rows `cuts[s]` … `cuts[s + 1] - 1`. With `position > 0` there is exactly one."""

    pattern: Stage
    cuts: tuple[int, ...]
    position: int = 0

    @property
    def new(self) -> int:
        return self.cuts[-1]

    @cached_property
    def held(self) -> Integers:
        """The positions kept from before: those that a token from `position` on may read."""
        return self.pattern.held(self.position)

    @property
    def known(self) -> int:
        return len(self.held)

    @cached_property
    def longest(self) -> int:
        """Rows of the longest sequence, those known included."""
        return self.known + max((after - before for before, after in pairwise(self.cuts)), default=0)

    @cached_property
    def width(self) -> int:
        """Sources of the widest row: the columns of coefficients."""
        if self.general:
            return max(map(len, self._listed), default=0)
        return self.pattern.widest_row(max(self.position + self.longest - self.known, 1))

    @property
    def shifted(self) -> bool:
        """Whether every row reads at the same distances: then `offsets` says it all, and no table is needed."""
        return self.pattern.is_shifted(max(self.position + self.longest, 1))

    @property
    def general(self) -> bool:
        """Whether rows are listed one by one: they read neither at the same distances nor all that is still alive."""
        return not self.shifted and not self.pattern.contiguous_columns

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
    def listed(self) -> tuple[Table, Integers]:
        """What the new rows of the longest sequence read, one row after another, nearest first; and how many each."""
        if self.general:
            rows = [np.empty(0, dtype=np.int64), *self._listed]
            return np.concatenate(rows).astype(np.int32), np.array([len(row) for row in self._listed], dtype=np.int64)
        read = self.local_table >= 0
        return self.local_table[read], read.sum(1)

    @cached_property
    def local_table(self) -> Table:
        """(new rows of the longest sequence, width) rows that each reads, nearest first, -1 beyond.

        A sequence that starts at row `base` reads the rows `base +` these: no row depends on what follows it.
        """
        count = self.longest - self.known
        if self.general:
            table = np.full((count, self.width), -1, dtype=np.int32)
            for row, sources in zip(table, self._listed, strict=True):
                row[: len(sources)] = sources
            return table
        if self.shifted:
            table = np.arange(self.known, self.longest, dtype=np.int32)[:, None] - self.offsets.astype(np.int32)
            return np.where(table >= 0, table, np.int32(-1))[:, : self.width]
        table = np.empty((count, self.width), dtype=np.int32)
        _list_by_last_reader(self.last_reader, self.known, np.empty(self.width + self.known + 1, dtype=np.int32), table)
        return table

    @cached_property
    def _listed(self) -> list[Integers]:
        """The rows that each new row of the longest sequence reads, nearest first."""
        rows = []
        for i in range(self.position, self.position + self.longest - self.known):
            positions = self.pattern.sources(i)[::-1]
            before = self.held.searchsorted(positions)  # what is held has its number there
            rows.append(np.where(positions < self.position, before, positions - self.position + self.known))
        return rows

    @cached_property
    def table(self) -> Table:
        """(new, width): as `local_table`, with all sequences one after another and rows numbered throughout."""
        if len(self.cuts) == 2:
            return self.local_table
        tables = [np.empty((0, self.width), dtype=np.int32)]
        for before, after in pairwise(self.cuts):
            local = self.local_table[: after - before]
            tables.append(np.where(local >= 0, local + np.int32(before), np.int32(-1)))
        return np.concatenate(tables)

    @cached_property
    def _plans(self) -> dict[object, Any]:
        return {}

    def plan(self, make: Callable[[Rows], T]) -> T:
        """What `make` derives from these rows, kept with them: to look it up by value would take longer."""
        if make not in self._plans:
            self._plans[make] = make(self)
        plan: T = self._plans[make]
        return plan


@lru_cache(maxsize=32)
def rows_of(pattern: Stage, cuts: tuple[int, ...], position: int = 0) -> Rows:
    """The same object for the same question, so that its tables are computed once."""
    return Rows(pattern, cuts, position)
