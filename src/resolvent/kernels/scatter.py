"""The backward sweep where rows are listed one by one: neither at fixed distances nor in runs of readers.

Formulas, arrays and rows as in `backward.py`. Nothing tells who reads a row but the table of what all the others read.
So rows are taken from the last to the first, and each adds what it owes to the rows it reads: by the time that a row's
turn comes, all its readers have had theirs, and its dU is complete. The cost is that of the table: O(reads · D).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.backward import query, score_gradient, softmax_again, weighted_mean
from resolvent.kernels.forward import LOWEST, clear, copy_row, locate, score, score_self
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import dot, fma, load, splat, store, times


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _clear_rows(target, at, rows, d):
    for o in range(at * d, (at + rows) * d, UNIT):
        store(target, np.uint64(o), splat(target.dtype.type(0), (0,)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _give(weights, table, at, count, values, values_at, target, target_at, d, size):
    """target_j += weights[c] · values[values_at] for every source j of a row."""
    for e in range(0, d, len(size) * UNIT):
        value = load(values, np.uint64(values_at * d + e), size)
        for c in range(count):
            o = np.uint64((target_at + table[np.uint64(at + c)]) * d + e)
            store(target, o, fma(weights[np.uint64(c)], value, load(target, o, size)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _give_one(weight, values, values_at, target, target_at, d, size):
    for e in range(0, d, len(size) * UNIT):
        o = np.uint64(target_at * d + e)
        store(target, o, fma(weight, load(values, np.uint64(values_at * d + e), size), load(target, o, size)))


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def backward(
    x, qa, ka, qb, kb, gate, y, stats,
    dy, dx, dqa, dka, dqb, dkb, dgate, dy_known,
    offsets, table, starts, widths, cuts, known, most, d, dk, size, size_k, scale, direct, recurrent, _, group,
    weight_a, weight_b, slope_a, slope_b, own, nothing, du, first, last,
):  # fmt: skip
    """Jobs first … last - 1. As `backward.backward`, without blocks; `own` and `nothing` have room for a number."""
    one, nil = stats.dtype.type(1), stats.dtype.type(0)
    scored_b = recurrent and most > 1
    nothing[0] = nil
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for row in range(end):
            copy_row(dy, x_at + row, du, row, d, size)
        if direct:
            _clear_rows(dx, x_at, end, d)
            _clear_rows(dka, x_at, end, dk)
        if scored_b:
            _clear_rows(dkb, x_at, end, dk)
        for i in range(end - 1, known - 1, -1):
            count = widths[i - known]
            pitch = (count + UNIT) // UNIT * UNIT
            at = np.uint64(STATS * (q_at + i))
            feeds = recurrent and count > 0
            # The weights again, A~ and B~, and the slopes <dU_i, x_j> and <dU_i, y_j>.
            if direct:
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, i, 1, count, group, dk,
                      size_k, LOWEST, weight_a, pitch, 0)  # fmt: skip
                score_self(qa, q_at, ka, x_at, scale, widths, known, i, 1, dk, size_k, weight_a, pitch)
                softmax_again(weight_a, 0, count + 1, stats[at], stats[at + np.uint64(1)])
                score(du, 0, x, x_at, one, offsets, table, starts, widths, known, i, 1, count, group, d, size, 0,
                      slope_a, pitch, 0)  # fmt: skip
                score_self(du, 0, x, x_at, one, widths, known, i, 1, d, size, slope_a, pitch)
            else:
                clear(weight_a, UNIT, 0)
                clear(slope_a, UNIT, 0)
                weight_a[0] = one
                for e in range(0, d, len(size) * UNIT):
                    value = load(du, np.uint64(i * d + e), size)
                    slope_a[0] += dot(value, load(x, np.uint64((x_at + i) * d + e), size))
            if feeds:
                if scored_b:
                    score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, i, 1, count, group, dk,
                          size_k, LOWEST, weight_b, pitch, 0)  # fmt: skip
                    softmax_again(weight_b, 0, count, stats[at + np.uint64(2)], stats[at + np.uint64(3)])
                else:
                    clear(weight_b, pitch, 0)
                    weight_b[0] = one
                score(du, 0, y, x_at, one, offsets, table, starts, widths, known, i, 1, count, group, d, size, 0,
                      slope_b, pitch, 0)  # fmt: skip
            # Their means under the weights, and so the gradients of the scores and of the gate.
            g = gate[q_at + i] if feeds else nil
            direct_count = count + 1 if direct else 1
            mean = weighted_mean(weight_a, slope_a, 0, direct_count)
            score_gradient(weight_a, slope_a, 0, direct_count, one - g, mean, scale)
            dgate[q_at + i] = nil
            if feeds:
                mean_b = weighted_mean(weight_b, slope_b, 0, count)
                score_gradient(weight_b, slope_b, 0, count, g, mean_b, scale)
                dgate[q_at + i] = mean_b - mean
            # What the row owes to its sources and to itself.
            if direct:
                own[0] = slope_a[count]
                query(slope_a, pitch, own, ka, x_at, dqa, q_at, offsets, table, starts, widths, known, i, 1, dk, size_k,
                      group)  # fmt: skip
                _give(weight_a, table, starts[i - known], count, du, i, dx, x_at, d, size)
                _give_one(weight_a[count], du, i, dx, x_at + i, d, size)
                _give(slope_a, table, starts[i - known], count, qa, q_at + i, dka, x_at, dk, size_k)
                _give_one(slope_a[count], qa, q_at + i, dka, x_at + i, dk, size_k)
            else:
                for e in range(0, d, len(size) * UNIT):
                    value = load(du, np.uint64(i * d + e), size)
                    store(dx, np.uint64((x_at + i) * d + e), times(weight_a[0], value))
            if scored_b:
                query(slope_b, pitch, nothing, kb, x_at, dqb, q_at, offsets, table, starts, widths, known, i, 1, dk,
                      size_k, group)  # fmt: skip
                _give(slope_b, table, starts[i - known], count, qb, q_at + i, dkb, x_at, dk, size_k)
            if feeds:
                _give(weight_b, table, starts[i - known], count, du, i, du, 0, d, size)
        for row in range(known):  # with known rows there is one sequence, and a job is a head
            copy_row(du, row, dy_known, job * known + row, d, size)
