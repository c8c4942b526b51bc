"""The backward sweep of translation-invariant patterns, over one sequence of one head, from its end.

The readers of j are j + f(k): α, β and the gradients of the scores are kept for the head at work (n × W, by columns),
and a block takes what its rows receive from them. Formulas as in `backward.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.backward import score_gradients, weights_again
from resolvent.kernels.forward import copy_row, locate, pitch_of
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import fma, load, prefetch, splat, store, times


@njit(error_model="numpy", _nrt=False)
def _keep_slopes(slopes, pitch, columns, rows, kept, kept_pitch, kept_at):
    unit = (0,)
    units = rows // UNIT * UNIT
    for c in range(columns):
        for r in range(0, units, UNIT):
            store(kept, np.uint64(c * kept_pitch + kept_at + r), load(slopes, np.uint64(c * pitch + r), unit))
        for r in range(units, rows):
            kept[np.uint64(c * kept_pitch + kept_at + r)] = slopes[np.uint64(c * pitch + r)]


@njit(error_model="numpy", _nrt=False)
def _receive_far(
    kept_a, kept_b, pitch, dy, du, dx, x_at, offsets, within, b0, b1, end, direct, recurrent, d, size, group
):
    """What rows b0 … b1 - 1 receive of dU from readers beyond them, into dU and into dX; both start here."""
    for c0 in range(0, max(within[end - 1 - b0], 1), group):
        for j in range(b0, b1):
            low, high = max(c0, within[b1 - 1 - j]), min(c0 + group, within[end - 1 - j])
            if low >= high and c0 > 0:
                continue
            for e in range(0, d, len(size) * UNIT):
                o, p = np.uint64((x_at + j) * d + e), np.uint64(j * d + e)
                sums_x = splat(du.dtype.type(0), size) if c0 == 0 else load(dx, o, size)
                sums_u = load(dy, o, size) if c0 == 0 else load(du, p, size)
                if c0 == 0:
                    prefetch(dx, np.uint64(max(x_at + j - (b1 - b0), 0) * d + e), size)
                for c in range(low, high):
                    i = j + offsets[np.uint64(c)]
                    row = load(du, np.uint64(i * d + e), size)
                    if direct:
                        sums_x = fma(kept_a[np.uint64(c * pitch + i)], row, sums_x)
                    if recurrent:
                        sums_u = fma(kept_b[np.uint64(c * pitch + i)], row, sums_u)
                if direct:
                    store(dx, o, sums_x)
                store(du, p, sums_u)


@njit(error_model="numpy", _nrt=False)
def _receive_near(
    kept_a, kept_b, pitch, dy, own, du, dx, x_at, offsets, within, b0, b1, end, begun, direct, recurrent, d, size
):
    """All dU and dX of rows b0 … b1 - 1, from the last on, from readers before `end`; from dY, or what has `begun`.

    `own` is what a row's dX takes of its own dU.
    """
    for j in range(b1 - 1, b0 - 1, -1):
        high = within[end - 1 - j]
        for e in range(0, d, len(size) * UNIT):
            o, p = np.uint64((x_at + j) * d + e), np.uint64(j * d + e)
            sums_u = load(du, p, size) if begun else load(dy, o, size)
            sums_x = load(dx, o, size) if begun and direct else splat(du.dtype.type(0), size)
            if not begun:
                prefetch(dy, np.uint64(max(x_at + j - (b1 - b0), 0) * d + e), size)
                prefetch(dx, np.uint64(max(x_at + j - (b1 - b0), 0) * d + e), size)
            for c in range(high - 1, -1, -1):
                i = j + offsets[np.uint64(c)]
                row = load(du, np.uint64(i * d + e), size)
                if direct:
                    sums_x = fma(kept_a[np.uint64(c * pitch + i)], row, sums_x)
                if recurrent:
                    sums_u = fma(kept_b[np.uint64(c * pitch + i)], row, sums_u)
            store(du, p, sums_u)
            store(dx, o, fma(own[np.uint64(j - b0)], sums_u, sums_x))


@njit(error_model="numpy", _nrt=False)
def _receive(
    kept, pitch, values, values_at, own, with_own, target, target_at, offsets, within, b0, b1, first, end, d, size,
    group,
):  # fmt: skip
    """target_j = Σ kept[c, i] · values_i over the readers i = j + offsets[c], first ≤ i < end; j from b0 to b1.

    And own[j - b0] · values_j besides, `with_own`.
    """
    for c0 in range(0, max(within[end - 1 - b0], 1), group):
        for j in range(b0, b1):
            low = max(c0, within[first - 1 - j] if j < first else 0)
            high = min(c0 + group, within[end - 1 - j])
            if low >= high and c0 > 0:
                continue
            for e in range(0, d, len(size) * UNIT):
                o = np.uint64((target_at + j) * d + e)
                if c0 > 0:
                    sums = load(target, o, size)
                else:
                    prefetch(target, np.uint64(max(target_at + j - (b1 - b0), 0) * d + e), size)
                    sums = splat(target.dtype.type(0), size)
                    if with_own:
                        p = np.uint64((values_at + j) * d + e)
                        sums = times(own[np.uint64(j - b0)], load(values, p, size))
                for c in range(low, high):
                    i = j + offsets[np.uint64(c)]
                    weight = kept[np.uint64(c * pitch + i)]
                    sums = fma(weight, load(values, np.uint64((values_at + i) * d + e), size), sums)
                store(target, o, sums)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def backward(
    x, qa, ka, qb, kb, gate, y, stats,
    dy, dx, dqa, dka, dqb, dkb, dgate, dy_known,
    offsets, table, starts, widths, within, last_reader, cuts, known, most, d, dk, size, size_pair, size_k, scale,
    direct, recurrent, block, group, weight_a, weight_b, slope_a, slope_b, keep, feed, top, factor, own, column, du,
    kept_a, kept_b, kept_slope_a, kept_slope_b, first, last,
):  # fmt: skip
    """Jobs first … last - 1. `du` is room for dU of one sequence; gradients need not be cleared.

    `within[m]` is the number of offsets ≤ m. `size_pair` is a span of which two rows of sums fit the registers. Where
    B's softmax runs over one source only, or A is diagonal, the gradients of their queries and keys are zero and not
    written. `last_reader` and `column` are for `rounded.backward`, which is called alike.
    """
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    scored_b = recurrent and most > 1
    far = most > group
    kept_pitch = len(widths) + known + UNIT
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for b1 in range(end, known, -block):
            b0 = max(known, b1 - block)
            rows = b1 - b0
            pitch = pitch_of(rows)
            width = weights_again(
                qa, ka, qb, kb, gate, stats, x_at, q_at, offsets, table, starts, widths, known, b0, rows, pitch, dk,
                size_k, scale, direct, recurrent, scored_b, group, weight_a, weight_b, keep, feed, top, factor, own,
                kept_a, kept_b, kept_pitch, b0,
            )  # fmt: skip
            # dU and dX: what later rows pass on.
            if far:
                _receive_far(kept_a, kept_b, kept_pitch, dy, du, dx, x_at, offsets, within, b0, b1, end, direct,
                             recurrent, d, size_pair, group)  # fmt: skip
            _receive_near(kept_a, kept_b, kept_pitch, dy, own, du, dx, x_at, offsets, within, b0, b1,
                          b1 if far else end, far, direct, recurrent, d, size_pair)  # fmt: skip
            score_gradients(
                x, y, du, ka, kb, dqa, dqb, dgate, x_at, q_at, offsets, table, starts, widths, known, b0, rows, width,
                pitch, d, dk, size, size_k, scale, direct, recurrent, scored_b, group, weight_a, weight_b, slope_a,
                slope_b, keep, feed, top, factor, own,
            )  # fmt: skip
            # Keys take from readers.
            if direct:
                _keep_slopes(slope_a, pitch, width, rows, kept_slope_a, kept_pitch, b0)
                _receive(kept_slope_a, kept_pitch, qa, q_at, own, direct, dka, x_at, offsets, within, b0, b1, known,
                         end, dk, size_k, group)  # fmt: skip
            if scored_b:
                _keep_slopes(slope_b, pitch, width, rows, kept_slope_b, kept_pitch, b0)
                _receive(kept_slope_b, kept_pitch, qb, q_at, own, no, dkb, x_at, offsets, within, b0, b1, known,
                         end, dk, size_k, group)  # fmt: skip
        if known > 0:
            _receive_far(kept_a, kept_b, kept_pitch, dy, du, dx, x_at, offsets, within, zero, known, end, direct,
                         recurrent, d, size_pair, group)  # fmt: skip
            if direct:
                _receive(kept_slope_a, kept_pitch, qa, q_at, own, no, dka, x_at, offsets, within, zero, known, known,
                         end, dk, size_k, group)  # fmt: skip
            if scored_b:
                _receive(kept_slope_b, kept_pitch, qb, q_at, own, no, dkb, x_at, offsets, within, zero, known, known,
                         end, dk, size_k, group)  # fmt: skip
        for row in range(known):  # with known rows there is one sequence, and a job is a head
            copy_row(du, row, dy_known, job * known + row, d, size)
