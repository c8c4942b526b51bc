"""Patterns given row by row: a table, a Python function of the token, or a rule with a name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns.checks import LARGEST_POSITION, require_length, require_position, require_positions
from resolvent.patterns.pattern import Direct, Mask, modifiers
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Integers, Value, frozen, power_of_two


class RowReads(Value, ABC):
    """The positions that each token reads, as a frozen value."""

    @property
    @abstractmethod
    def spelling(self) -> str:
        """The text that files hold."""

    @property
    def label(self) -> str:
        """What tables and messages show."""
        return self.spelling

    @property
    def has_spelling(self) -> bool:
        return True

    @property
    def limit(self) -> int | None:
        """The number of tokens that it is defined for; None if there is no end."""
        return None

    @abstractmethod
    def sources(self, i: int) -> Integers:
        """The past positions that token i reads, ascending and distinct."""

    @property
    def reads_several(self) -> bool:
        """Whether some token reads more than one position; without an end, nothing says that none does."""
        return True

    def listed(self, n: int) -> tuple[Integers, Integers]:
        """All reads of the first n tokens in compressed rows: where each begins, and the positions."""
        each = [self.sources(i) for i in range(n)]
        return np.concatenate([[0], np.cumsum([len(row) for row in each], dtype=np.int64)]), np.concatenate(each)


@final
@dataclass(frozen=True, repr=False)
class Explicit(Stage):
    """Token i reads `rows.sources(i)`. Where there is an end, slots are given to positions as they become free."""

    rows: RowReads
    direct: Direct = "all"
    recurrent: bool = True

    @property
    def limit(self) -> int | None:
        return self.rows.limit

    @property
    def has_spelling(self) -> bool:
        return self.rows.has_spelling

    @property
    def contiguous_columns(self) -> bool:
        return False

    @property
    def reads_several(self) -> bool:
        return self.rows.reads_several

    def sources(self, i: int) -> Integers:
        i = require_position(i)
        self.require_within(i + 1)
        return self.rows.sources(i)

    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        reader, source = np.broadcast_arrays(require_positions(i, "i"), require_positions(j, "j"))
        allowed = np.zeros(reader.size, dtype=np.bool_)
        order = np.argsort(reader, axis=None, kind="stable")  # the entries of a row together
        tokens, begins = np.unique(reader.ravel()[order], return_index=True)
        for token, chosen in zip(tokens.tolist(), np.split(order, begins[1:]), strict=False):
            if token >= 0:
                allowed[chosen] = np.isin(source.ravel()[chosen], self.sources(token))
        return allowed.reshape(reader.shape)

    def life(self, j: int) -> int | float:
        j = require_position(j, "j")
        if self.limit is None:
            return math.inf
        self.require_within(j + 1)
        return int(last_readers(self.rows, self.limit)[j]) - j

    def lives(self, n: int | str) -> Integers:
        n = require_length(n)
        self.require_within(n)
        last = last_readers(self.rows, n if self.limit is None else self.limit)[:n]
        lives: Integers = np.minimum(last - np.arange(n), n)
        return lives

    def period(self, n: int | str) -> int:
        return require_length(n)

    def total_reads(self, n: int | str) -> int:
        n = require_length(n)
        self.require_within(n)
        return int(listed(self.rows, n)[0][-1])

    def widest_row(self, n: int | str) -> int:
        n = require_length(n)
        self.require_within(n)
        return int(np.diff(listed(self.rows, n)[0]).max())

    def slots(self, n: int | str) -> int:
        n = require_length(n)
        if self.limit is None:
            return n - 1
        self.require_within(n)
        return int(self._slots[: n - 1].max(initial=-1)) + 1

    def slot(self, j: int) -> int:
        j = require_position(j, "j")
        return j if self.limit is None else int(self._slots[j])

    def slots_of(self, positions: Integers) -> Integers:
        return np.array(positions) if self.limit is None else self._slots[positions]

    def last_readers(self, positions: Integers) -> Integers:
        if self.limit is None:
            return positions + np.int64(LARGEST_POSITION)
        return last_readers(self.rows, self.limit)[positions]

    @property
    def reuses_slots(self) -> bool:
        return self.limit is not None

    @cached_property
    def _slots(self) -> Integers:
        assert self.limit is not None
        return _assign_slots(last_readers(self.rows, self.limit))

    def cache_efficient(self) -> Stage:
        raise PatternError(f"{self} is not made of strides: expected '+cache' after a pattern such as 'quadratic'.")

    @property
    def spelling(self) -> str:
        return self.rows.spelling + modifiers(self.direct, self.recurrent)

    @property
    def label(self) -> str:
        return self.rows.label + modifiers(self.direct, self.recurrent)


def listed(rows: RowReads, n: int) -> tuple[Integers, Integers]:
    """`rows.listed(n)`, from few lists for all lengths."""
    longest = power_of_two(n) if rows.limit is None else min(power_of_two(n), rows.limit)
    starts, positions = _listed(rows, longest)
    return starts[: n + 1], positions[: starts[n]]


@lru_cache(maxsize=16)
def _listed(rows: RowReads, n: int) -> tuple[Integers, Integers]:
    starts, positions = rows.listed(n)
    return frozen(starts), frozen(positions)


@lru_cache(maxsize=16)
def last_readers(rows: RowReads, n: int) -> Integers:
    """The last of the first n tokens that reads each position; the position itself if none does."""
    starts, positions = listed(rows, n)
    last = np.arange(n)
    np.maximum.at(last, positions, np.repeat(np.arange(n), np.diff(starts)))
    return frozen(last)


def _assign_slots(last: Integers) -> Integers:
    """A slot for each position, the lowest that is free; -1 for those that are never read.

    Lifetimes are intervals, so this takes as many slots as positions are ever alive at once, at every length.
    """
    from heapq import heappop, heappush

    slots = np.full(len(last), -1, dtype=np.int64)
    free: list[int] = []
    ends: list[tuple[int, int]] = []  # last reader and slot of what is alive
    used = 0
    for j, reader in enumerate(last.tolist()):
        while ends and ends[0][0] <= j:  # its last reader has read it before this one is written
            heappush(free, heappop(ends)[1])
        if reader > j:
            if not free:
                heappush(free, used)
                used += 1
            slots[j] = heappop(free)
            heappush(ends, (reader, int(slots[j])))
    return frozen(slots)
