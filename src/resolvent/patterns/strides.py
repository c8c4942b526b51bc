"""The strictly increasing sequence f(0) < f(1) < … of distances at which a token reads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError, is_integer
from resolvent.patterns.expression import LARGEST_STRIDE, canonical, compile_expression, values_of

Integers = npt.NDArray[np.int64]

_CHECKED_VALUES = 64
_PROBES = [start + k for start in (2**20, 2**24, 2**30, 2**40) for k in range(64)]  # far out
_MOST_STRIDES = 1 << 24
_FIRST_BLOCK, _LARGEST_BLOCK = 64, 1 << 16  # strides that are computed at once
_SHARED = 1 << 20  # positions up to which rows are views of one shared array


class Value:
    """Base of frozen dataclasses with cached properties: copies and pickles contain the fields only."""

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


class Strides(Value, ABC):
    """A finite or infinite strictly increasing sequence of integers ≥ 1, as a frozen value."""

    @property
    @abstractmethod
    def spelling(self) -> str:
        """The text that command line and config files use."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """The largest stride; None for an infinite sequence, 0 for an empty one."""

    @abstractmethod
    def below(self, limit: int) -> Integers:
        """All strides < limit, ascending. A read-only view: no copy is made."""

    @property
    def far_gap(self) -> int | float:
        """The largest gap between neighbors far out; infinite if it is not known to be bounded."""
        return math.inf

    def __contains__(self, distance: int) -> bool:
        strides = self.below(distance + 1)
        return len(strides) > 0 and int(strides[-1]) == distance


@final
@dataclass(frozen=True)
class Contiguous(Strides):
    """Every distance from 1 to `size`, or every distance if `size` is None."""

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
        """The positions within reach of position i, ascending."""
        reach = self._reach(i)
        return counting(i)[i - reach :] if i <= max(_SHARED, 2 * reach) else frozen(np.arange(i - reach, i))

    def _reach(self, most: int) -> int:
        return max(most if self.size is None else min(most, self.size), 0)


@final
@dataclass(frozen=True)
class Listed(Strides):
    """An explicit list of strides."""

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
    """An infinite sequence, computed value by value and cached as far as it is needed."""

    @abstractmethod
    def value(self, k: int) -> int:
        """The stride f(k)."""

    @property
    def last(self) -> None:
        return None

    @cached_property
    def far_gap(self) -> int | float:
        try:
            return max(self.value(k + 1) - self.value(k) for k in _PROBES)
        except (PatternError, OverflowError):  # grows too fast to evaluate there: not bounded
            return math.inf

    def below(self, limit: int) -> Integers:
        known = _generate(self, power_of_two(max(limit, 1024)))
        return known[: known.searchsorted(limit)]


NAMED = {"2**k": "exponential", "k**2+1": "quadratic"}


@final
@dataclass(frozen=True)
class Formula(Generated):
    """Strides from an integer expression in k. Use `Formula.parse`, which checks and normalizes the text."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Formula:
        formula = cls(canonical(text))
        check_first_values(formula, f"stride:{formula.text}")
        return formula

    @property
    def spelling(self) -> str:
        return NAMED.get(self.text, f"stride:{self.text}")

    @cached_property
    def _function(self) -> Callable[[int], int]:
        return compile_expression(self.text)

    def block(self, start: int, stop: int) -> Integers | None:
        """f(start), …, f(stop - 1) at once; None if they have to be computed one by one."""
        return values_of(self.text, start, stop)

    def value(self, k: int) -> int:
        try:
            return self._function(k)
        except ZeroDivisionError:
            raise PatternError(f"'stride:{self.text}' divides by zero at k={k}.") from None


@final
@dataclass(frozen=True)
class FunctionStrides(Generated):
    """Strides from a Python function of k. Equal only to strides with the same function object."""

    function: Callable[[int], int]

    @property
    def spelling(self) -> str:
        return f"stride:<{getattr(self.function, '__name__', type(self.function).__name__)}>"

    def value(self, k: int) -> int:
        value = self.function(k)
        if not is_integer(value):
            raise PatternError(f"strides are integers: {self.spelling} gave {value!r} at k={k}.")
        return int(value)


def check_first_values(strides: Generated, name: str) -> None:
    """Check the first values immediately, so that an invalid sequence fails where it is defined."""
    values: list[int] = []
    for k in range(_CHECKED_VALUES):
        values.append(strides.value(k))
        check_increasing(values[-2:], name, k)
        if values[0] > LARGEST_STRIDE:
            raise PatternError(f"{name[:40]!r} reads nothing within any sequence: expected f(0) ≤ 2**62.")
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
    blocks = list(_blocks(strides, limit)) if isinstance(strides, Formula) else []
    done = sum(map(len, blocks))
    values: list[int] = []
    value_of, before, most = strides.value, int(blocks[-1][-1]) if done else 0, _MOST_STRIDES
    for k in count(done):  # what is left, or has an error to tell of
        value = value_of(k)
        if value <= before:
            check_increasing([before, value] if k else [value], strides.spelling, k)
        if value >= limit:
            break
        if value >= 2 * LARGEST_STRIDE:  # which arrays do not hold
            raise PatternError(
                f"{strides.spelling} has strides of 2**63 and more below {limit}: use shorter sequences."
            )
        values.append(value)
        before = value
        if k == most:
            require_few(k + 1, strides, limit)
    return frozen(np.concatenate([*blocks, np.array(values, dtype=np.int64)]))


def _blocks(strides: Formula, limit: int) -> Iterator[Integers]:
    """The strides below the limit, as long as they can be computed at once, and increase."""
    start, before, size = 0, 0, _FIRST_BLOCK
    while (block := strides.block(start, start + size)) is not None:
        below = block[: np.argmax(block >= limit)] if block[-1] >= limit else block
        if not len(below) or np.any(np.diff(below, prepend=before) <= 0):
            return
        yield below
        start, before, size = start + len(below), int(below[-1]), min(2 * size, _LARGEST_BLOCK)
        require_few(start, strides, limit)
        if len(below) < len(block):
            return


def require_few(number: int, strides: Strides, limit: int) -> None:
    """Raise an error if so many strides below the limit are too many to list."""
    most = _MOST_STRIDES
    if number > most:
        raise PatternError(
            f"{strides.spelling} has more than {most:,} strides below {limit:,}: too many to list. "
            f"Use shorter sequences."
        )


def power_of_two(size: int) -> int:
    """The least power of two that is at least this: so far lists are made, so that few of them serve all sizes."""
    return 1 << (size - 1).bit_length()


def counting(size: int) -> Integers:
    """The integers 0 to size - 1 as a view of one shared read-only array."""
    return _counting(power_of_two(max(size, 1024)))[:size]


@lru_cache(maxsize=2)
def _counting(size: int) -> Integers:
    return frozen(np.arange(size, dtype=np.int64))


def frozen(array: Integers) -> Integers:
    """Make an array read-only, because it is shared, and return it."""
    array.setflags(write=False)
    return array
