"""Tables of who reads whom, compiled by Numba."""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit


@cached_njit()
def list_by_last_reader(last_reader, known, count, most):
    """(count, most) int32: what the rows from `known` on read, nearest first, -1 beyond.

    Row j is read by all later rows up to `last_reader[j]`; those before `known` only by rows from there on.
    """
    table = np.full((count, most), -1, dtype=np.int32)
    alive = np.empty(most + known + 1, dtype=np.int32)
    alive[:known] = np.arange(known)
    held = known
    for r in range(count):
        kept = 0
        for c in range(held):
            if last_reader[alive[c]] >= known + r:
                alive[kept] = alive[c]
                kept += 1
        held = kept
        for c in range(held):
            table[r, c] = alive[held - 1 - c]
        if last_reader[known + r] > known + r:
            alive[held] = known + r
            held += 1
    return table
