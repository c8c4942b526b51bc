"""Strides of published patterns: a window of neighbors and sparse distances beyond it, or a window with gaps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from resolvent.errors import PatternError
from resolvent.patterns.expression import LARGEST_STRIDE
from resolvent.patterns.strides import Integers, Strides, counting, frozen, power_of_two, require_few


class Windowed(Strides):
    """Every distance from 1 to `window`, and without end those beyond it that `beyond` has."""

    window: int

    @abstractmethod
    def beyond(self, limit: int) -> range | list[int]:
        """The distances > window and < limit, ascending."""

    @property
    def last(self) -> None:
        return None

    def below(self, limit: int) -> Integers:
        known = _listed(self, power_of_two(max(limit, 1024)))
        return known[: known.searchsorted(limit)]


@final
@dataclass(frozen=True)
class SparseTransformer(Windowed):
    """1, 2, …, l, and the multiples of l: the strided pattern of the Sparse Transformer, both of its heads in one."""

    window: int

    @property
    def spelling(self) -> str:
        return f"sparse-transformer:{self.window}"

    @property
    def far_gap(self) -> int:
        return self.window

    def beyond(self, limit: int) -> range:
        return range(2 * self.window, limit, self.window)


@final
@dataclass(frozen=True)
class LogSparse(Windowed):
    """1, 2, …, w, and w + 1, w + 2, w + 4, …: the LogSparse pattern with a local window of w."""

    window: int

    @property
    def spelling(self) -> str:
        return f"logsparse:{self.window}" if self.window else "logsparse"

    def beyond(self, limit: int) -> list[int]:
        farther = max(limit - 1 - self.window, 0)
        return [self.window + 2**k for k in range(farther.bit_length())]


@final
@dataclass(frozen=True)
class Dilated(Strides):
    """d, 2d, …, wd: a window of w positions with gaps."""

    size: int
    gap: int

    def __post_init__(self) -> None:
        if self.size * self.gap > LARGEST_STRIDE:
            raise PatternError(f"{self.spelling!r} reads farther than any sequence is long: expected w·d ≤ 2**62.")

    @property
    def spelling(self) -> str:
        return f"dilated:{self.size},{self.gap}"

    @property
    def last(self) -> int:
        return self.size * self.gap

    def below(self, limit: int) -> Integers:
        return _multiples(self)[: max(limit - 1, 0) // self.gap]


@lru_cache(maxsize=64)
def _listed(strides: Windowed, limit: int) -> Integers:
    near, far = min(strides.window, limit - 1), strides.beyond(limit)
    require_few(near + len(far), strides, limit)
    return frozen(np.concatenate([counting(near + 1)[1:], np.array(far, dtype=np.int64)]))


@lru_cache(maxsize=64)
def _multiples(strides: Dilated) -> Integers:
    return frozen(strides.gap * np.arange(1, strides.size + 1, dtype=np.int64))
