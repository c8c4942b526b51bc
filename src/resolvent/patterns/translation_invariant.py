"""Patterns that read at the same distances everywhere: token i reads i - f(0), i - f(1), …"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.cache_efficient import CacheEfficient
from resolvent.patterns.checks import LARGEST_POSITION, require_length, require_position, require_positions
from resolvent.patterns.pattern import Mask
from resolvent.patterns.stage import Strided, spell
from resolvent.patterns.strides import Contiguous, Integers


@final
class TranslationInvariant(Strided):
    """Token i reads the positions i - f(k) ≥ 0."""

    @property
    def contiguous_columns(self) -> bool:
        last = self.strides.last
        return isinstance(self.strides, Contiguous) or (last is not None and len(self.strides.below(last + 1)) == last)

    def sources(self, i: int) -> Integers:
        i = require_position(i)
        if isinstance(self.strides, Contiguous):
            return self.strides.sources(i)
        return (i - self.strides.below(i + 1))[::-1]

    def reads(self, i: int) -> int:
        return len(self.strides.below(require_position(i) + 1))

    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        source = require_positions(j, "j")
        distance = require_positions(i, "i") - source
        if isinstance(self.strides, Contiguous):
            within = distance <= (distance.max(initial=0) if self.strides.size is None else self.strides.size)
        else:
            within = np.isin(distance, self.strides.below(int(distance.max(initial=0)) + 1))
        return np.asarray((distance > 0) & within & (source >= 0))

    def life(self, j: int) -> int | float:
        require_position(j, "j")
        return math.inf if self.strides.last is None else self.strides.last

    def lives(self, n: int | str) -> Integers:
        n = require_length(n)
        last = self.strides.last
        return np.full(n, n if last is None else min(last, n), dtype=np.int64)

    def period(self, n: int | str) -> int:
        require_length(n)
        return 1

    def is_shifted(self, n: int) -> bool:  # noqa: ARG002
        return True

    def slots(self, n: int | str) -> int:
        n = require_length(n)
        last = self.strides.last
        return n - 1 if last is None else min(last, n - 1)

    def slot(self, j: int) -> int:
        j = require_position(j, "j")
        last = self.strides.last
        if last is None:
            return j
        return j % last if last > 0 else -1

    def slots_of(self, positions: Integers) -> Integers:
        last = self.strides.last
        return np.array(positions) if last is None else positions % max(min(last, LARGEST_POSITION), 1)

    def last_readers(self, positions: Integers) -> Integers:
        return positions + np.int64(min(self.life(0), LARGEST_POSITION))

    @property
    def reuses_slots(self) -> bool:
        return self.strides.last is not None

    def cache_efficient(self) -> CacheEfficient:
        return CacheEfficient(self.strides, self.direct, self.recurrent)

    @property
    def spelling(self) -> str:
        return spell(self.strides, self.direct, self.recurrent)
