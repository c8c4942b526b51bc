"""The logarithms of `whole.py`, row after row, compiled by Numba."""

from __future__ import annotations

import math

from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def logs_forward(scores, u, table, logs):
    """logs[h, known + i] = log(Σ exp(scores) + Σ u exp(logs_j)); scores (H, n, 1 or 1 + W), u (H, n, W), in float64."""
    heads, n, columns = scores.shape
    known = logs.shape[1] - n
    for h in range(heads):
        for i in range(n):
            count = 0
            while count < table.shape[1] and table[i, count] >= 0:
                count += 1
            direct = min(1 + count, columns)
            top = scores[h, i, 0]
            for c in range(1, direct):
                top = max(top, scores[h, i, c])
            for c in range(count):
                if u[h, i, c] > 0:
                    top = max(top, math.log(u[h, i, c]) + logs[h, table[i, c]])
            mass = 0.0
            for c in range(direct):
                mass += math.exp(scores[h, i, c] - top)
            for c in range(count):
                weight = u[h, i, c]
                if weight != 0:  # NaN counts
                    mass += math.exp(math.log(weight) + logs[h, table[i, c]] - top)
            logs[h, known + i] = top + math.log(mass)
