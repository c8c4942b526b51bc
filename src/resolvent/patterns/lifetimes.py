"""Patterns given by how long each position lives: token i reads every j with 0 < i - j ≤ life(j)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns import binomial
from resolvent.patterns.checks import LARGEST_POSITION, require_length, require_position, require_positions
from resolvent.patterns.pattern import Direct, Mask, modifiers
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Integers, Value


class Lifetime(Value, ABC):
    """How long positions live, and which slots they take: arithmetic on single positions, for endless sequences."""

    @property
    @abstractmethod
    def spelling(self) -> str:
        """The text that command line and config files use."""

    @property
    @abstractmethod
    def reads_several(self) -> bool:
        """Whether some token reads more than one position."""

    @abstractmethod
    def sources(self, i: int) -> list[int]:
        """The positions that are alive at token i, ascending."""

    @abstractmethod
    def life(self, j: int) -> int:
        """The number of tokens that read position j: those right after it."""

    @abstractmethod
    def lives(self, n: int) -> Integers:
        """`life(j)` for all j < n, capped at n."""

    @abstractmethod
    def slot(self, j: int) -> int:
        """The cache slot of position j."""

    @abstractmethod
    def slots_of(self, positions: Integers) -> Integers:
        """`slot(j)` of many positions."""

    @abstractmethod
    def slots(self, n: int) -> int:
        """The number of slots that n tokens need."""


@final
@dataclass(frozen=True, repr=False)
class Lifetimes(Stage):
    """Columns are contiguous runs below the diagonal, as long as `lifetime` says."""

    lifetime: Lifetime
    direct: Direct = "all"
    recurrent: bool = True

    @property
    def contiguous_columns(self) -> bool:
        return True

    @property
    def reads_several(self) -> bool:
        return self.lifetime.reads_several

    def sources(self, i: int) -> Integers:
        return np.array(self.lifetime.sources(require_position(i)), dtype=np.int64)

    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        reader, source = np.broadcast_arrays(require_positions(i, "i"), require_positions(j, "j"))
        distinct, index = np.unique(np.maximum(source, 0), return_inverse=True)
        lives = np.array([self.life(int(each)) for each in distinct], dtype=np.int64)[index].reshape(source.shape)
        return np.asarray((source >= 0) & (reader > source) & (reader - source <= lives))

    def life(self, j: int) -> int:
        return min(self.lifetime.life(require_position(j, "j")), LARGEST_POSITION)

    def lives(self, n: int | str) -> Integers:
        return self.lifetime.lives(require_length(n))

    def period(self, n: int | str) -> int:
        return require_length(n)

    def slots(self, n: int | str) -> int:
        return self.lifetime.slots(require_length(n))

    def slot(self, j: int) -> int:
        return self.lifetime.slot(require_position(j, "j"))

    def slots_of(self, positions: Integers) -> Integers:
        return self.lifetime.slots_of(positions)

    def last_readers(self, positions: Integers) -> Integers:
        return positions + np.array([self.life(int(j)) for j in positions], dtype=np.int64)

    @property
    def reuses_slots(self) -> bool:
        return True

    def cache_efficient(self) -> Stage:
        raise PatternError(f"{self} reads what is still held already: leave '+cache' out.")

    @property
    def spelling(self) -> str:
        return self.lifetime.spelling + modifiers(self.direct, self.recurrent)


@final
@dataclass(frozen=True)
class Fenwick(Lifetime):
    """The nodes of a Fenwick tree: counted from 1, position j sums up the last lowbit(j) tokens and lives as long.

    Token i (from 0) reads i, i less its lowest bit, and so on, counted from 1: the prefix of all tokens before it.
    """

    @property
    def spelling(self) -> str:
        return "fenwick"

    @property
    def reads_several(self) -> bool:
        return True

    def sources(self, i: int) -> list[int]:
        nodes = []
        while i:
            nodes.append(i - 1)
            i &= i - 1
        return nodes[::-1]

    def life(self, j: int) -> int:
        return (j + 1) & -(j + 1)

    def lives(self, n: int) -> Integers:
        nodes = np.arange(1, n + 1)
        lives: Integers = np.minimum(nodes & -nodes, n)
        return lives

    def slot(self, j: int) -> int:
        return self.life(j).bit_length() - 1

    def slots_of(self, positions: Integers) -> Integers:
        lives = (positions + 1) & -(positions + 1)
        slots: Integers = np.frexp(lives.astype(np.float64))[1].astype(np.int64) - 1  # powers of two are exact
        return slots

    def slots(self, n: int) -> int:
        return (n - 1).bit_length()


@final
@dataclass(frozen=True)
class GlobalAndWindow(Lifetime):
    """The first `fixed` positions live forever, each other one for `window` tokens."""

    window: int
    fixed: int

    @property
    def spelling(self) -> str:
        return f"longformer:{self.window},{self.fixed}"

    @property
    def reads_several(self) -> bool:
        return self.window + self.fixed > 1

    def sources(self, i: int) -> list[int]:
        first = min(self.fixed, i)
        return [*range(first), *range(max(first, i - self.window), i)]

    def life(self, j: int) -> int:
        return LARGEST_POSITION if j < self.fixed else self.window

    def lives(self, n: int) -> Integers:
        lives = np.full(n, min(self.window, n), dtype=np.int64)
        lives[: self.fixed] = n
        return lives

    def slot(self, j: int) -> int:
        return j if j < self.fixed else self.fixed + (j - self.fixed) % self.window

    def slots_of(self, positions: Integers) -> Integers:
        past = positions - self.fixed
        return np.where(past < 0, positions, self.fixed + past % self.window)

    def slots(self, n: int) -> int:
        return min(self.window + self.fixed, n - 1)


@final
@dataclass(frozen=True)
class Binomial(Lifetime):
    """With `size` slots, the fewest hops at every length. If lazy, positions are kept until their slot is needed."""

    size: int
    lazy: bool = False

    @property
    def spelling(self) -> str:
        return f"binomial:{self.size}{',lazy' if self.lazy else ''}"

    @property
    def reads_several(self) -> bool:
        return self.size > 1

    def sources(self, i: int) -> list[int]:
        return (binomial.live_lazy if self.lazy else binomial.live)(self.size, i)

    def life(self, j: int) -> int:
        return (binomial.life_lazy if self.lazy else binomial.life)(self.size, j)

    def lives(self, n: int) -> Integers:
        return (binomial.lives_lazy if self.lazy else binomial.lives)(self.size, n)

    def slot(self, j: int) -> int:
        return binomial.slot(self.size, j)

    def slots_of(self, positions: Integers) -> Integers:
        last = int(positions.max(initial=0))
        if last >= 4 * len(positions):  # few of many: one by one
            return np.array([self.slot(int(j)) for j in positions], dtype=np.int64)
        slots: Integers = binomial.slots(self.size, last + 1)[positions]
        return slots

    def slots(self, n: int) -> int:
        return min(self.size, n - 1)
