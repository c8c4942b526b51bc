"""Patterns that read at the same distances everywhere: token i reads i - f(0), i - f(1), …"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.cache_efficient import CacheEfficient
from resolvent.patterns.errors import require_length, require_position, require_positions
from resolvent.patterns.pattern import Mask, Pattern, spell
from resolvent.patterns.strides import Contiguous, Integers


@final
class TranslationInvariant(Pattern):
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

    def lives(self, n: int) -> Integers:
        n = require_length(n)
        last = self.strides.last
        return np.full(n, n if last is None else min(last, n), dtype=np.int64)

    def period(self, n: int) -> int:
        require_length(n)
        return 1

    def slots(self, n: int) -> int:
        n = require_length(n)
        last = self.strides.last
        return n - 1 if last is None else min(last, n - 1)

    def slot(self, j: int) -> int:
        j = require_position(j, "j")
        last = self.strides.last
        if last is None:
            return j
        return j % last if last > 0 else -1

    def cache_efficient(self) -> CacheEfficient:
        return CacheEfficient(self.strides, self.direct, self.recurrent)

    def __str__(self) -> str:
        return spell(self.strides, self.direct, self.recurrent)
