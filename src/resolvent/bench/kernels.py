"""One loop that does nothing but load."""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit


@cached_njit(nogil=True, fastmath=True)
def load(values, total, times):
    """Read all of `values` so many times.

    The sums may be reordered (fastmath), so they run in several vector registers. `total` might overlap `values` for
    all the compiler knows: storing to it after each sweep is what keeps sweeps from being merged into one.
    """
    for _ in range(times):
        one = np.float32(0)
        for index in range(np.uint64(values.size)):
            one += values[np.uint64(index)]
        total[0] += one
