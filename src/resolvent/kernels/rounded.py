"""The backward sweep of rounded patterns, over one sequence of one head, from its end.

The readers of j are one run of rows: each block of readers passes on what it has for every row it reads. Formulas as in
`backward.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.backward import score_gradients, weights_again
from resolvent.kernels.forward import copy_row, locate, pitch_of
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import fma, load, splat, store


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _pass_on(kept_a, kept_b, pitch, column, dy, own, du, dx, x_at, j, b0, low, high, fresh, direct, recurrent, d, size):
    """Both dU and dX of row j from its readers low ≤ i < high in a block from b0; `own` as in `_receive_near`."""
    for e in range(0, d, len(size) * UNIT):
        o, p = np.uint64((x_at + j) * d + e), np.uint64(j * d + e)
        sums_u = load(dy, o, size) if fresh else load(du, p, size)
        sums_x = splat(du.dtype.type(0), size) if fresh or not direct else load(dx, o, size)
        for i in range(high - 1, low - 1, -1):
            r = i - b0
            w = np.uint64(column[np.uint64(r)] * pitch + r)
            row = load(du, np.uint64(i * d + e), size)
            if direct:
                sums_x = fma(kept_a[w], row, sums_x)
            if recurrent:
                sums_u = fma(kept_b[w], row, sums_u)
        store(du, p, sums_u)
        if j >= b0:
            store(dx, o, fma(own[np.uint64(j - b0)], sums_u, sums_x))
        elif direct:
            store(dx, o, sums_x)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _pass_on_keys(
    slopes, pitch, column, values, values_at, own, with_own, target, target_at, j, b0, low, high, fresh, d, size
):
    """target_j (+)= Σ slopes[column, i] · values_i over the readers low ≤ i < high; its own part where it begins."""
    for e in range(0, d, len(size) * UNIT):
        o = np.uint64((target_at + j) * d + e)
        sums = splat(target.dtype.type(0), size) if fresh else load(target, o, size)
        for i in range(low, high):
            r = i - b0
            weight = slopes[np.uint64(column[np.uint64(r)] * pitch + r)]
            sums = fma(weight, load(values, np.uint64((values_at + i) * d + e), size), sums)
        if with_own and j >= b0:
            sums = fma(own[np.uint64(j - b0)], load(values, np.uint64((values_at + j) * d + e), size), sums)
        store(target, o, sums)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def backward(
    x, qa, ka, qb, kb, gate, y, stats,
    dy, dx, dqa, dka, dqb, dkb, dgate, dy_known,
    offsets, table, starts, widths, within, last_reader, cuts, known, most, d, dk, size, size_pair, size_k, scale,
    direct, recurrent, block, group, weight_a, weight_b, slope_a, slope_b, keep, feed, top, factor, own, column, du,
    kept_a, kept_b, kept_slope_a, kept_slope_b, first, last,
):  # fmt: skip
    """Jobs first … last - 1, as `shifted.backward` takes them; `column` counts the readers of each row of a block."""
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    scored_b = recurrent and most > 1
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for b1 in range(end, known, -block):
            b0 = max(known, b1 - block)
            rows = b1 - b0
            pitch = pitch_of(rows)
            width = weights_again(
                qa, ka, qb, kb, gate, stats, x_at, q_at, offsets, table, starts, widths, known, b0, rows, pitch, dk,
                size_k, scale, direct, recurrent, scored_b, group, weight_a, weight_b, keep, feed, top, factor, own,
                kept_a, kept_b, pitch, zero,
            )  # fmt: skip
            # dU and dX: what later rows pass on.
            for r in range(rows):
                column[r] = 0
            for number in range(rows + widths[b0 - known]):  # nearest first, as the columns of every row
                j = b1 - 1 - number if number < rows else table[starts[b0 - known] + number - rows]
                low, high = max(j + 1, b0), min(last_reader[j] + 1, end)
                _pass_on(kept_a, kept_b, pitch, column, dy, own, du, dx, x_at, j, b0, low, min(high, b1), high <= b1,
                         direct, recurrent, d, size_pair)  # fmt: skip
                for r in range(low - b0, min(high, b1) - b0):
                    column[np.uint64(r)] += 1
            score_gradients(
                x, y, du, ka, kb, dqa, dqb, dgate, x_at, q_at, offsets, table, starts, widths, known, b0, rows, width,
                pitch, d, dk, size, size_k, scale, direct, recurrent, scored_b, group, weight_a, weight_b, slope_a,
                slope_b, keep, feed, top, factor, own,
            )  # fmt: skip
            # Keys take from readers.
            if not (direct or scored_b):
                continue
            for r in range(rows):
                column[r] = 0
            for number in range(rows + widths[b0 - known]):
                j = b1 - 1 - number if number < rows else table[starts[b0 - known] + number - rows]
                low, high = max(j + 1, b0), min(last_reader[j] + 1, end)
                fresh = high <= b1  # no later block reads it
                high = min(high, b1)
                if direct:
                    _pass_on_keys(slope_a, pitch, column, qa, q_at, own, direct, dka, x_at, j, b0, low, high, fresh, dk,
                                  size_k)  # fmt: skip
                if scored_b:
                    _pass_on_keys(slope_b, pitch, column, qb, q_at, own, no, dkb, x_at, j, b0, low, high, fresh, dk,
                                  size_k)  # fmt: skip
                for r in range(low - b0, high - b0):
                    column[np.uint64(r)] += 1
        for row in range(known):  # with known rows there is one sequence, and a job is a head
            copy_row(du, row, dy_known, job * known + row, d, size)
