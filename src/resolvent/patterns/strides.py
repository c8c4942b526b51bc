"""The strictly increasing sequence f(0) < f(1) < … of distances at which a token reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.errors import PatternError, is_integer
from resolvent.patterns.expression import LARGEST_STRIDE, canonical, compile_expression
from resolvent.patterns.value import Value

Integers = npt.NDArray[np.int64]

_CHECKED_AT_BIRTH = 64
_MOST_STRIDES = 1 << 24


class Strides(Value, ABC):
    """A finite or infinite strictly increasing sequence of integers ≥ 1, as a frozen value."""

    @property
    @abstractmethod
    def spelling(self) -> str:
        """How the command line and config files write it."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """The largest stride, or None when there is none. 0 when there are no strides at all."""

    @abstractmethod
    def below(self, limit: int) -> Integers:
        """All strides < limit, ascending. A read-only view: no copy is made."""

    def __contains__(self, distance: int) -> bool:
        strides = self.below(distance + 1)
        return len(strides) > 0 and int(strides[-1]) == distance


@final
@dataclass(frozen=True)
class Contiguous(Strides):
    """Every distance from 1 to `size`; every distance there is when `size` is None."""

    size: int | None

    @property
    def spelling(self) -> str:
        return "dense" if self.size is None else f"order:{self.size}"

    @property
    def last(self) -> int | None:
        return self.size

    def below(self, limit: int) -> Integers:
        return counting(self._reach(limit - 1) + 1)[1:]

    def sources(self, i: int) -> Integers:
        """The positions within reach before i."""
        return counting(i)[i - self._reach(i) :]

    def _reach(self, most: int) -> int:
        return max(most if self.size is None else min(most, self.size), 0)


@final
@dataclass(frozen=True)
class Listed(Strides):
    """Strides written out one by one."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise PatternError("expected at least one offset, for example 'offsets:1,2,5', got none.")
        check_increasing(self.values, "offsets")
        if self.values[-1] > LARGEST_STRIDE:
            raise PatternError(f"offset {self.values[-1]} is longer than any sequence: expected at most 2**62.")

    @property
    def spelling(self) -> str:
        return "offsets:" + ",".join(map(str, self.values))

    @property
    def last(self) -> int:
        return self.values[-1]

    @cached_property
    def _array(self) -> Integers:
        return frozen(np.array(self.values, dtype=np.int64))

    def below(self, limit: int) -> Integers:
        return self._array[: bisect_left(self.values, limit)]


class Generated(Strides):
    """An infinite sequence computed one value at a time, and remembered as far as it was needed."""

    @abstractmethod
    def value(self, k: int) -> int:
        """f(k)."""

    @property
    def last(self) -> None:
        return None

    def below(self, limit: int) -> Integers:
        known = _generate(self, 1 << max(limit, 1024).bit_length())
        return known[: known.searchsorted(limit)]


NAMED = {"2**k": "exponential", "k**2+1": "quadratic"}


@final
@dataclass(frozen=True)
class Formula(Generated):
    """Strides from an integer expression in k. Use `Formula.parse`, which checks and normalises the text."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Formula:
        formula = cls(canonical(text))
        check_birth(formula, f"stride:{formula.text}")
        return formula

    @property
    def spelling(self) -> str:
        return NAMED.get(self.text, f"stride:{self.text}")

    @cached_property
    def _function(self) -> Callable[[int], int]:
        return compile_expression(self.text)

    def value(self, k: int) -> int:
        try:
            return self._function(k)
        except ZeroDivisionError:
            raise PatternError(f"'stride:{self.text}' divides by zero at k={k}.") from None


@final
@dataclass(frozen=True)
class Rule(Generated):
    """Strides from a Python function of k. Equal only to a rule with the very same function."""

    function: Callable[[int], int]

    @property
    def spelling(self) -> str:
        return f"stride:<{getattr(self.function, '__name__', type(self.function).__name__)}>"

    def value(self, k: int) -> int:
        value = self.function(k)
        if not is_integer(value):
            raise PatternError(f"strides are integers: {self.spelling} gave {value!r} at k={k}.")
        return int(value)


def check_birth(strides: Generated, name: str) -> None:
    """Look at the first values at once, so that a bad sequence fails where it is written down."""
    values: list[int] = []
    for k in range(_CHECKED_AT_BIRTH):
        values.append(strides.value(k))
        check_increasing(values[-2:], name, k)
        if values[-1] > LARGEST_STRIDE:
            break


def check_increasing(values: tuple[int, ...] | list[int], name: str, k: int | None = None) -> None:
    """Raise unless the values are integers ≥ 1 that strictly increase. `k` is the index of the last one."""
    last = len(values) - 1 if k is None else k
    for index, value in enumerate(values, start=last - len(values) + 1):
        if value < 1:
            raise PatternError(
                f"{name!r} reads {value} positions back at k={index}: expected strides ≥ 1 "
                f"(a token always sees itself, so 0 is not a stride)."
                + (" Shift it, for example 'k+1' for 'k'." if name.startswith("stride") else "")
            )
    for index, (before, after) in enumerate(pairwise(values), start=last - len(values) + 2):
        if after <= before:
            raise PatternError(
                f"{name!r} must strictly increase: expected f({index}) > f({index - 1}), got {after} after {before}."
            )


@lru_cache(maxsize=64)
def _generate(strides: Generated, limit: int) -> Integers:
    values: list[int] = []
    value_of, before = strides.value, 0
    for k in count():
        value = value_of(k)
        if value <= before:
            check_increasing([before, value] if k else [value], strides.spelling, k)
        if value >= limit:
            break
        values.append(value)
        before = value
        if k == _MOST_STRIDES:
            raise PatternError(
                f"{strides.spelling} has more than {_MOST_STRIDES:,} strides below {limit:,}: too many to list. "
                f"Ask about shorter sequences."
            )
    return frozen(np.array(values, dtype=np.int64))


def counting(size: int) -> Integers:
    """0, 1, …, size-1 as a view of one shared read-only array."""
    return _counting(1 << max(size, 1024).bit_length())[:size]


@lru_cache(maxsize=2)
def _counting(size: int) -> Integers:
    return frozen(np.arange(size, dtype=np.int64))


def frozen(array: Integers) -> Integers:
    """The same array, made read-only because it is shared."""
    array.setflags(write=False)
    return array
