"""One loop that does nothing but load."""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import load as load_vector
from resolvent.kernels.vectors import plus, splat
from resolvent.kernels.vectors import total as total_of

SPAN = 8 * UNIT  # elements at once: `values` has whole spans


@cached_njit(nogil=True)
def load(values, total, times):
    """Read all of `values` so many times.

    Sums run side by side, 16 registers of AVX or 8 of AVX-512: with fewer, each load would wait for an addition, and
    the loop would measure how long that takes. `total` might overlap `values` for all the compiler knows: storing to it
    after each sweep is what keeps sweeps from being merged into one.
    """
    span = (0, 0, 0, 0, 0, 0, 0, 0)
    for _ in range(times):
        sums = splat(values.dtype.type(0), span)
        for index in range(0, values.size, SPAN):
            sums = plus(sums, load_vector(values, np.uint64(index), span))
        total[0] += total_of(sums)
