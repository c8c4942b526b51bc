"""Tables of who reads whom, compiled by Numba."""

from __future__ import annotations

from resolvent.disk_cache import cached_njit


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def list_by_last_reader(last_reader, known, alive, table):
    """Into `table`, whose rows have room for the widest: what the rows from `known` on read, nearest first, -1 beyond.

    Row j is read by all later rows up to `last_reader[j]`; those before `known` only by rows from there on. `alive` has
    room for the widest row, the known ones and one more.
    """
    for c in range(known):
        alive[c] = c
    held = known
    for r in range(len(table)):
        kept = 0
        for c in range(held):
            if last_reader[alive[c]] >= known + r:
                alive[kept] = alive[c]
                kept += 1
        held = kept
        for c in range(held):
            table[r, c] = alive[held - 1 - c]
        for c in range(held, table.shape[1]):
            table[r, c] = -1
        if last_reader[known + r] > known + r:
            alive[held] = known + r
            held += 1
