"""Patterns that only read positions the previous token still held, so the cache stays about as small as one row.

Each position i - f(k) is rounded up to a multiple of a lattice step a_k. Written 1-based, as in docs/theory.md:

    a_0 = f(0),   a_{k+1} = a_k ceil((f(k+1) - f(k)) / a_k)            each step divides the next
    S_i = { a_k ceil((i - f(k)) / a_k) : f(k) < i }                    lattice form: used to list and test reads
    j ∈ S_i  ⇔  0 < i - j ≤ L(j),   L(j) = f(sup{k : a_k | j})         lifetime form: used for life, cache and slots
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.checks import LARGEST_POSITION, require_length, require_position, require_positions
from resolvent.patterns.pattern import Mask
from resolvent.patterns.stage import Strided, spell
from resolvent.patterns.strides import Contiguous, Integers, Strides, frozen, power_of_two

# An infinite sequence with bounded gaps keeps some positions for ever. Finitely many values of a function cannot prove
# that; it is assumed if, after this many levels, no gap far out (`Strides.far_gap`) exceeds the lattice step.
_LEVELS_BEFORE_PROBING = 1 << 16


@final
class CacheEfficient(Strided):
    """Token i reads the positions i - f(k), each rounded up to a position that the previous token still held."""

    @property
    def contiguous_columns(self) -> bool:
        return True

    @cached_property
    def _lattice(self) -> Lattice:
        return Lattice(self.strides)

    def sources(self, i: int) -> Integers:
        i = require_position(i)
        if isinstance(self.strides, Contiguous):
            return self.strides.sources(i)
        strides, steps = self._lattice.levels(i + 1)
        rounded = i + 1 - strides
        rounded += -rounded % steps
        distinct = np.ones(len(rounded), dtype=np.bool_)
        np.not_equal(rounded[1:], rounded[:-1], out=distinct[1:])
        return rounded[distinct][::-1] - 1

    def reads(self, i: int) -> int:
        return len(self.sources(i))

    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        """Bisect over the levels, along which the rounded positions decrease: the lattice form, not the lifetimes."""
        reader, source = np.broadcast_arrays(require_positions(i, "i") + 1, require_positions(j, "j") + 1)
        strides, steps = self._lattice.levels(int(reader.max(initial=1)))
        count = strides.searchsorted(reader)
        low, high = np.zeros_like(count), count.copy()
        while np.any(low < high):  # the first level whose rounded position is ≤ source
            middle = np.minimum((low + high) // 2, max(len(strides) - 1, 0))
            target = reader - strides[middle]
            above = (target + -target % steps[middle] > source) & (low < high)
            low, high = np.where(above, middle + 1, low), np.where(above, high, np.minimum(high, middle))
        if len(strides) == 0:
            return np.zeros(reader.shape, dtype=np.bool_)
        level = np.minimum(low, len(strides) - 1)
        target = reader - strides[level]
        return np.asarray((low < count) & (source >= 1) & (target + -target % steps[level] == source))

    def life(self, j: int) -> int | float:
        lifetime_class = self._lattice.class_of(require_position(j, "j") + 1)
        return 0 if lifetime_class is None else lifetime_class.life

    def lives(self, n: int | str) -> Integers:
        n = require_length(n)
        lives = np.zeros(n, dtype=np.int64)
        for c in self._lattice.classes_within(n):
            lives[c.step - 1 :: c.step] = c.life
        return lives

    def period(self, n: int | str) -> int:
        _, steps = self._lattice.levels(require_length(n))
        return int(steps[-1]) if len(steps) else 1

    def is_shifted(self, n: int) -> bool:
        return self.period(n) == 1

    def slots(self, n: int | str) -> int:
        last = require_length(n) - 1
        return sum(int(min(c.ring, c.count(last))) for c in self._lattice.classes(last + 1))

    def slot(self, j: int) -> int:
        return self._lattice.slot(require_position(j, "j") + 1)

    def slots_of(self, positions: Integers) -> Integers:
        return np.array([self.slot(int(j)) for j in positions], dtype=np.int64)

    def last_readers(self, positions: Integers) -> Integers:
        lives = [min(self.life(int(j)), LARGEST_POSITION) for j in positions]
        return positions + np.array(lives, dtype=np.int64)

    @property
    def reuses_slots(self) -> bool:
        return not self.is_dense

    def cache_efficient(self) -> CacheEfficient:
        return self

    @property
    def spelling(self) -> str:
        return spell(self.strides, self.direct, self.recurrent) + "+cache"


@dataclass(frozen=True)
class LifetimeClass:
    """The positions (1-based) divisible by `step` but not by the next class's step: all live equally long."""

    step: int
    next_step: int | None
    life: int | float
    ring: int | float

    def count(self, last: int | float) -> int:
        """The number of positions ≤ last in the class."""
        last = int(last)
        return last // self.step - (last // self.next_step if self.next_step else 0)


class Lattice:
    """The steps a_k, grouped into classes of equal step; extended on demand and cached."""

    def __init__(self, strides: Strides) -> None:
        self._strides = strides
        self._levels: tuple[int, Integers, Integers] = (0, *_steps(strides, 0))
        self._classes: tuple[LifetimeClass, ...] = ()
        self._complete = 0  # the classes of all positions below this are final
        self._slot_of: dict[tuple[int, int], int] = {}

    def levels(self, i: int) -> tuple[Integers, Integers]:
        """The strides f(k) < i and their steps a_k."""
        limit, strides, steps = self._levels
        if limit < i:
            limit = power_of_two(max(i, 1024))
            strides, steps = _steps(self._strides, limit)
            self._levels = (limit, strides, steps)
        count = strides.searchsorted(i)
        return strides[:count], steps[:count]

    def classes(self, j: int) -> tuple[LifetimeClass, ...]:
        """The classes that positions ≤ j can belong to."""
        if self._complete <= j:
            self._grow(j)
        return tuple(c for c in self._classes if c.step <= j)

    def classes_within(self, n: int) -> tuple[LifetimeClass, ...]:
        """The classes as n tokens see them: no level beyond n matters, so the last one is taken to end with n."""
        if isinstance(self._strides, Contiguous):
            reach = n if self._strides.size is None else min(self._strides.size, n)
            return (LifetimeClass(1, None, reach, reach),) if reach else ()
        return tuple(_classes(*self.levels(n), ended=True))

    def class_of(self, j: int) -> LifetimeClass | None:
        """The class of position j: the coarsest whose step divides it."""
        if self._complete <= j:
            self._grow(j)
        coarsest = None
        for c in self._classes:
            if j % c.step:
                break
            coarsest = c
        return coarsest

    def slot(self, j: int) -> int:
        """The cache slot of position j; -1 if it is never read.

        Each class has a ring of slots; slots are numbered in the order in which a growing sequence first fills them.

        Class t needs as many slots as it has positions in a window of one lifetime, and reuses them in turn. The
        numbering does not depend on the sequence length, and n tokens fill exactly the first `slots(n)`.
        """
        c = self.class_of(j)
        if c is None:
            return -1
        turn = c.count(j) - 1
        if not math.isinf(c.ring):
            turn %= int(c.ring)
        key = (c.step, turn)
        slot = self._slot_of.get(key)
        if slot is None:
            first = c.step * self._multiplier(c, turn)  # the first position that ever takes this slot
            slot = sum(min(int(min(d.ring, first)), d.count(first - 1)) for d in self._classes if d.step < first)
            if not math.isinf(c.ring):
                self._slot_of[key] = slot
        return slot

    @staticmethod
    def _multiplier(c: LifetimeClass, turn: int) -> int:
        """The (turn+1)-th positive integer that is not a multiple of next_step/step."""
        if c.next_step is None:
            return turn + 1
        ratio = c.next_step // c.step
        return turn + 1 + turn // (ratio - 1)

    def _grow(self, j: int) -> None:
        """Extend the levels until a step exceeds j, so that the class of every position ≤ j is known."""
        if isinstance(self._strides, Contiguous):
            life = math.inf if self._strides.size is None else self._strides.size
            self._classes = (LifetimeClass(1, None, life, life),) if life else ()
            self._complete = 1 << 62
            return
        limit = max(j, 1024)
        while True:
            strides, steps = self.levels(limit)
            ended = self._strides.last is not None and self._strides.last < limit
            if ended or (len(steps) and steps[-1] > j):
                break
            if len(steps) > _LEVELS_BEFORE_PROBING and self._strides.far_gap <= steps[-1]:
                break
            limit *= 4
        classes = _classes(strides, steps, ended)
        if not ended and steps[-1] > j:
            classes.pop()  # its life is not known yet, and no position ≤ j belongs to it
        self._classes = tuple(classes)
        self._complete = 1 << 62 if classes and classes[-1].next_step is None else max(j + 1, self._complete)


def _classes(strides: Integers, steps: Integers, ended: bool) -> list[LifetimeClass]:
    """Group levels of equal step into classes; the last class lives for ever unless the strides have ended."""
    starts = np.flatnonzero(np.diff(steps, prepend=0)).tolist()
    classes = []
    for start, following in zip_longest(starts, starts[1:]):
        step, next_step = int(steps[start]), None if following is None else int(steps[following])
        life = math.inf if following is None and not ended else int(strides[-1 if following is None else following - 1])
        classes.append(LifetimeClass(step, next_step, life, _ring(step, next_step, life)))
    return classes


def _ring(step: int, next_step: int | None, life: int | float) -> int | float:
    """The most positions of a class in any `life` consecutive integers: how many slots it needs.

    Count in units of the step: a window holds at most ceil(life/step) multiples in a row, of which one in `ratio`
    belongs to coarser classes; the best window starts just after one of those.
    """
    if isinstance(life, float):
        return math.inf
    most = -(-life // step)
    return most if next_step is None else most - most // (next_step // step)


def _steps(strides: Strides, limit: int) -> tuple[Integers, Integers]:
    values = strides.below(limit)
    if isinstance(strides, Contiguous):
        return values, np.broadcast_to(np.int64(1), values.shape)
    steps = np.empty_like(values)
    step, before = 0, 0
    for k, value in enumerate(values.tolist()):
        step = value if k == 0 else step * -(-(value - before) // step)
        steps[k], before = step, value
    return values, frozen(steps)
