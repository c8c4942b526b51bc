"""The backward sweep where rows are listed one by one: neither at fixed distances nor in runs of readers.

Formulas, arrays and rows as in `backward.py`. Nothing tells who reads a row but the table of what all the others read.
So rows are taken from the last to the first, and each adds what it owes to the rows it reads: by the time that a row's
turn comes, all its readers have had theirs, and its dU is complete. The cost is that of the table: O(reads · D).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.backward import query
from resolvent.kernels.forward import LOWEST, clear, copy_row, locate, score
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import dot, exp_less, fma, less, load, product, splat, store, times


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _softmax_again(weights, at, count, top, factor):
    """The softmax from the scores and what the forward kept of it."""
    for c in range(0, count, UNIT):
        p = np.uint64(at + c)
        store(weights, p, times(factor, exp_less(load(weights, p, (0,)), top)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _weighted_mean(weights, slopes, at, count):
    """Σ weights · slopes over a row. Beyond it slopes are zero, and weights all but."""
    result = weights.dtype.type(0)
    for c in range(0, count, UNIT):
        result += dot(load(weights, np.uint64(at + c), (0,)), load(slopes, np.uint64(at + c), (0,)))
    return result


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _score_gradient(weights, slopes, at, count, part, mean, scale):
    """Weights become coefficients, slopes the gradients of the scores before scaling."""
    for c in range(0, count, UNIT):
        p = np.uint64(at + c)
        coefficients = times(part, load(weights, p, (0,)))
        store(weights, p, coefficients)
        store(slopes, p, times(scale, product(coefficients, less(load(slopes, p, (0,)), mean))))


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
    weight_a, weight_b, slope_a, slope_b, du, first, last,
):  # fmt: skip
    """Jobs first … last - 1. As `shifted.backward`, without blocks."""
    one, nil, lowest = stats.dtype.type(1), stats.dtype.type(0), stats.dtype.type(LOWEST)
    zero, single, no = np.int64(0), np.int64(1), known < 0  # a single row: its columns lie side by side
    scored_b = recurrent and most > 1
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
            at = np.uint64(STATS * (q_at + i))
            feeds = recurrent and count > 0
            # The weights again, A~ and B~, and the slopes <dU_i, x_j> and <dU_i, y_j>.
            if direct:
                clear(weight_a, zero, count + 1, lowest)
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, i, single, count, group, dk,
                      size_k, lowest, direct, weight_a, single, zero)  # fmt: skip
                _softmax_again(weight_a, 0, count + 1, stats[at], stats[at + np.uint64(1)])
                clear(slope_a, zero, count + 1, nil)
                score(du, zero, x, x_at, one, offsets, table, starts, widths, known, i, single, count, group, d, size,
                      nil, direct, slope_a, single, zero)  # fmt: skip
            else:
                clear(weight_a, zero, UNIT, nil)
                clear(slope_a, zero, UNIT, nil)
                weight_a[0] = one
                for e in range(0, d, len(size) * UNIT):
                    value = load(du, np.uint64(i * d + e), size)
                    slope_a[0] += dot(value, load(x, np.uint64((x_at + i) * d + e), size))
            if feeds:
                if scored_b:
                    clear(weight_b, zero, count, lowest)
                    score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, i, single, count, group, dk,
                          size_k, lowest, no, weight_b, single, zero)  # fmt: skip
                    _softmax_again(weight_b, 0, count, stats[at + np.uint64(2)], stats[at + np.uint64(3)])
                else:
                    clear(weight_b, zero, count, nil)
                    weight_b[0] = one
                clear(slope_b, zero, count, nil)
                score(du, zero, y, x_at, one, offsets, table, starts, widths, known, i, single, count, group, d, size,
                      nil, no, slope_b, single, zero)  # fmt: skip
            # Their means under the weights, and so the gradients of the scores and of the gate.
            g = gate[q_at + i] if feeds else nil
            direct_count = count + 1 if direct else 1
            mean = _weighted_mean(weight_a, slope_a, 0, direct_count)
            _score_gradient(weight_a, slope_a, 0, direct_count, one - g, mean, scale)
            dgate[q_at + i] = nil
            if feeds:
                mean_b = _weighted_mean(weight_b, slope_b, 0, count)
                _score_gradient(weight_b, slope_b, 0, count, g, mean_b, scale)
                dgate[q_at + i] = mean_b - mean
            # What the row owes to its sources and to itself.
            if direct:
                query(slope_a, single, slope_a, count, direct, ka, x_at, dqa, q_at, offsets, table, starts, widths,
                      known, i, single, dk, size_k, group)  # fmt: skip
                _give(weight_a, table, starts[i - known], count, du, i, dx, x_at, d, size)
                _give_one(weight_a[count], du, i, dx, x_at + i, d, size)
                _give(slope_a, table, starts[i - known], count, qa, q_at + i, dka, x_at, dk, size_k)
                _give_one(slope_a[count], qa, q_at + i, dka, x_at + i, dk, size_k)
            else:
                for e in range(0, d, len(size) * UNIT):
                    value = load(du, np.uint64(i * d + e), size)
                    store(dx, np.uint64((x_at + i) * d + e), times(weight_a[0], value))
            if scored_b:
                query(slope_b, single, slope_b, zero, no, kb, x_at, dqb, q_at, offsets, table, starts, widths, known, i,
                      single, dk, size_k, group)  # fmt: skip
                _give(slope_b, table, starts[i - known], count, qb, q_at + i, dkb, x_at, dk, size_k)
            if feeds:
                _give(weight_b, table, starts[i - known], count, du, i, du, 0, d, size)
        for row in range(known):  # with known rows there is one sequence, and a job is a head
            copy_row(du, row, dy_known, job * known + row, d, size)
