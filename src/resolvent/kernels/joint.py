"""The logarithms of `joint.py`, row after row, compiled by Numba."""

from __future__ import annotations

import math

from resolvent.disk_cache import cached_njit


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def logs_forward(direct, feedback, table, logs):
    """logs[h, known + i] = log(Σ exp(direct) + Σ exp(feedback + logs_j)), in float64; -inf beyond a row's sources."""
    heads, n, columns = direct.shape
    known = logs.shape[1] - n
    for h in range(heads):
        for i in range(n):
            top = direct[h, i, 0]
            for c in range(1, columns):
                top = max(top, direct[h, i, c])
            for c in range(table.shape[1]):
                if table[i, c] >= 0:
                    top = max(top, feedback[h, i, c] + logs[h, table[i, c]])
            mass = 0.0
            for c in range(columns):
                mass += math.exp(direct[h, i, c] - top)
            for c in range(table.shape[1]):
                if table[i, c] >= 0:
                    mass += math.exp(feedback[h, i, c] + logs[h, table[i, c]] - top)
            logs[h, known + i] = top + math.log(mass)
