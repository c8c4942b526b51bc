"""The fused backward sweep over one sequence of one head, from its end. Arrays and rows as in `forward.py`.

With U = A x and dU = (I - B)^-T dY, o = A~ x and m = B~ y:

    dg_i = <dU_i, m_i - o_i>
    dscoreA_ij = α_ij (<dU_i, x_j> - <dU_i, o_i>),   dX_j += α_ij dU_i
    dscoreB_ij = β_ij (<dU_i, y_j> - <dU_i, m_i>),   dU_j += β_ij dU_i

and <dU_i, o_i> = Σ_j A~_ij <dU_i, x_j>, so neither o nor m is needed. Weights are recomputed by the forward's `stats`.

Adding to rows in memory again and again is slow: every store holds up loads from rows a multiple of 4 KiB away. So what
j receives from its readers is gathered, with the sums in registers. In translation-invariant patterns the readers of j
are j + f(k): α, β and the gradients of the scores are kept for the head at work (n × W, by columns), and a block takes
what its rows receive from them. In rounded patterns the readers of j are one run of rows: each block of readers passes
on what it has for every row it reads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.forward import (
    LOWEST,
    add,
    clear,
    copy_row,
    count_inside,
    locate,
    score,
    score_self,
)
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import (
    dot,
    exp_less,
    fma,
    less,
    load,
    prefetch,
    product,
    splat,
    store,
    times,
)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def softmax_again(weights, at, count, top, factor):
    """The softmax from the scores and what the forward kept of it."""
    for c in range(0, count, UNIT):
        p = np.uint64(at + c)
        store(weights, p, times(factor, exp_less(load(weights, p, (0,)), top)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def weighted_mean(weights, slopes, at, count):
    """Σ weights · slopes over a row. Beyond it slopes are zero, and weights all but."""
    result = weights.dtype.type(0)
    for c in range(0, count, UNIT):
        result += dot(load(weights, np.uint64(at + c), (0,)), load(slopes, np.uint64(at + c), (0,)))
    return result


@njit(error_model="numpy", _nrt=False, forceinline=True)
def score_gradient(weights, slopes, at, count, part, mean, scale):
    """Weights become coefficients, slopes the gradients of the scores before scaling."""
    for c in range(0, count, UNIT):
        p = np.uint64(at + c)
        coefficients = times(part, load(weights, p, (0,)))
        store(weights, p, coefficients)
        store(slopes, p, times(scale, product(coefficients, less(load(slopes, p, (0,)), mean))))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _receive(
    kept, pitch, values, values_at, target, target_at, offsets, within, b0, b1, first, end, fresh, d, size, group
):
    """target_j (+)= Σ kept[c, i] · values_i over the readers i = j + offsets[c], first ≤ i < end; j from b0 to b1."""
    for c0 in range(0, max(within[end - 1 - b0], 1), group):
        for j in range(b0, b1):
            low = max(c0, within[first - 1 - j] if j < first else 0)
            high = min(c0 + group, within[end - 1 - j])
            if low >= high and not (fresh and c0 == 0):
                continue
            for e in range(0, d, len(size) * UNIT):
                o = np.uint64((target_at + j) * d + e)
                sums = splat(target.dtype.type(0), size) if fresh and c0 == 0 else load(target, o, size)
                if fresh and c0 == 0:
                    prefetch(target, np.uint64(max(target_at + j - (b1 - b0), 0) * d + e), size)
                for c in range(low, high):
                    i = j + offsets[c]
                    weight = kept[np.uint64(c * pitch + i)]
                    sums = fma(weight, load(values, np.uint64((values_at + i) * d + e), size), sums)
                store(target, o, sums)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _receive_far(kept_a, kept_b, pitch, du, dx, x_at, offsets, within, b0, b1, end, direct, recurrent, d, size, group):
    """What rows b0 … b1 - 1 receive of dU from readers beyond them, into dU itself and into dX, which starts here."""
    for c0 in range(0, max(within[end - 1 - b0], 1), group):
        for j in range(b0, b1):
            low, high = max(c0, within[b1 - 1 - j]), min(c0 + group, within[end - 1 - j])
            if low >= high and c0 > 0:
                continue
            for e in range(0, d, len(size) * UNIT):
                o, p = np.uint64((x_at + j) * d + e), np.uint64(j * d + e)
                sums_x = splat(du.dtype.type(0), size) if c0 == 0 else load(dx, o, size)
                sums_u = load(du, p, size)
                if c0 == 0:
                    prefetch(dx, np.uint64(max(x_at + j - (b1 - b0), 0) * d + e), size)
                for c in range(low, high):
                    i = j + offsets[c]
                    row = load(du, np.uint64(i * d + e), size)
                    if direct:
                        sums_x = fma(kept_a[np.uint64(c * pitch + i)], row, sums_x)
                    if recurrent:
                        sums_u = fma(kept_b[np.uint64(c * pitch + i)], row, sums_u)
                store(dx, o, sums_x)
                store(du, p, sums_u)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _pass_on(weights, pitch, column, values, values_at, target, target_at, j, b0, low, high, fresh, d, size):
    """target_j (+)= Σ weights[i - b0, column] · values_i over the run of readers low ≤ i < high of a block from b0."""
    for e in range(0, d, len(size) * UNIT):
        o = np.uint64((target_at + j) * d + e)
        sums = splat(target.dtype.type(0), size) if fresh else load(target, o, size)
        for i in range(low, high):
            r = i - b0
            weight = weights[np.uint64(r * pitch + column[np.uint64(r)])]
            sums = fma(weight, load(values, np.uint64((values_at + i) * d + e), size), sums)
        store(target, o, sums)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _add_self(weights, values, values_at, target, target_at, b0, rows, d, size):
    """target_i += weights[r] · values_i."""
    for r in range(rows):
        for e in range(0, d, len(size) * UNIT):
            o, p = np.uint64((target_at + b0 + r) * d + e), np.uint64((values_at + b0 + r) * d + e)
            store(target, o, fma(weights[np.uint64(r)], load(values, p, size), load(target, o, size)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def query(
    weights, pitch, own, keys, keys_at, target, target_at, offsets, table, starts, widths, known, b0, rows, d, size,
    group,
):  # fmt: skip
    """target_i = own[r] · keys_i + Σ weights[r, c] · keys_j over the sources of row i."""
    width = 1
    for r in range(rows):
        width = max(width, widths[b0 + r - known])
    for c0 in range(0, width, group):
        for r in range(rows):
            i = b0 + r
            for e in range(0, d, len(size) * UNIT):
                o = np.uint64((target_at + i) * d + e)
                if c0 == 0:
                    prefetch(target, np.uint64(max(target_at + i - rows, 0) * d + e), size)
                    sums = times(own[np.uint64(r)], load(keys, np.uint64((keys_at + i) * d + e), size))
                else:
                    sums = load(target, o, size)
                c1 = min(c0 + group, widths[i - known])
                sums = add(
                    weights, r * pitch, keys, keys_at, offsets, table, starts, known, i, c0, c1, d, e, size, sums
                )
                store(target, o, sums)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _receive_keys(
    qa, qb, dka, dkb, kept_a, kept_b, pitch, q_at, x_at, offsets, within, b0, b1, known, end, d, size, group,
    direct, scored_b,
):  # fmt: skip
    yes = known >= 0  # a literal would be a type of its own, and compiled once more
    if direct:
        _receive(kept_a, pitch, qa, q_at, dka, x_at, offsets, within, b0, b1, known, end, yes, d, size, group)
    if scored_b:
        _receive(kept_b, pitch, qb, q_at, dkb, x_at, offsets, within, b0, b1, known, end, yes, d, size, group)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def backward(
    x, qa, ka, qb, kb, gate, y, stats,
    dy, dx, dqa, dka, dqb, dkb, dgate, dy_known,
    offsets, table, starts, widths, within, last_reader, cuts, known, most, d, dk, size, size_k, scale, direct,
    recurrent, block, group, weight_a, weight_b, slope_a, slope_b, own_weight, own_slope, no_slope, inside, column, du,
    kept_a, kept_b, kept_slope_a, kept_slope_b, first, last,
):  # fmt: skip
    """Jobs first … last - 1. `du` is room for dU of one sequence; gradients need not be cleared.

    `within[m]` is the number of offsets ≤ m. Where B's softmax runs over one source only, or A is diagonal, the
    gradients of their queries and keys are zero and not written.
    """
    one, nil, lowest = stats.dtype.type(1), stats.dtype.type(0), stats.dtype.type(LOWEST)
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    rounded = len(last_reader) > 0
    scored_b = recurrent and most > 1
    kept_pitch = len(widths) + known + UNIT
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for b1 in range(end, known, -block):
            b0 = max(known, b1 - block)
            rows = b1 - b0
            width = 0
            for r in range(rows):
                width = max(width, widths[b0 + r - known])
                inside[r] = count_inside(offsets, table, starts, widths, known, b0, b0 + r)
                if not rounded or min(last_reader[b0 + r] + 1, end) <= b1:  # else a later block has begun it
                    copy_row(dy, x_at + b0 + r, du, b0 + r, d, size)
            pitch = (width + UNIT) // UNIT * UNIT
            fed = recurrent and width > 0
            # The weights again, A~ and B~.
            if scored_b:
                score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, weight_b, pitch, -rows)  # fmt: skip
            else:
                clear(weight_b, rows * pitch, nil)
            if direct:
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, weight_a, pitch, -rows)  # fmt: skip
                score_self(qa, q_at, ka, x_at, scale, widths, known, b0, rows, dk, size_k, weight_a, pitch)
            for r in range(rows):
                at = np.uint64(STATS * (q_at + b0 + r))
                count = widths[b0 + r - known]
                if direct:
                    softmax_again(weight_a, r * pitch, count + 1, stats[at], stats[at + np.uint64(1)])
                if scored_b:
                    softmax_again(weight_b, r * pitch, count, stats[at + np.uint64(2)], stats[at + np.uint64(3)])
                elif fed and count > 0:
                    weight_b[r * pitch] = one
            # dU: what later blocks pass on, then from row to row within the block.
            if not rounded:
                _receive_far(kept_a, kept_b, kept_pitch, du, dx, x_at, offsets, within, b0, b1, end, direct, recurrent,
                             d, size, group)  # fmt: skip
            if recurrent:
                for r in range(rows - 1, -1, -1):
                    i = b0 + r
                    for e in range(0, d, len(size) * UNIT):
                        row = times(gate[q_at + i], load(du, np.uint64(i * d + e), size))
                        for c in range(inside[r]):
                            j = i - offsets[c] if len(offsets) else table[np.uint64(starts[i - known] + c)]
                            o = np.uint64(j * d + e)
                            store(du, o, fma(weight_b[np.uint64(r * pitch + c)], row, load(du, o, size)))
            # Slopes <dU_i, x_j> and <dU_i, y_j>, their means under the weights, and so the gradients of the scores.
            if direct:
                score(du, zero, x, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
                      nil, slope_a, pitch, -rows)  # fmt: skip
                score_self(du, zero, x, x_at, one, widths, known, b0, rows, d, size, slope_a, pitch)
            else:
                clear(weight_a, rows * pitch, nil)
                clear(slope_a, rows * pitch, nil)
                for r in range(rows):
                    s = nil
                    for e in range(0, d, len(size) * UNIT):
                        row = load(du, np.uint64((b0 + r) * d + e), size)
                        s += dot(row, load(x, np.uint64((x_at + b0 + r) * d + e), size))
                    slope_a[r * pitch] = s
                    weight_a[r * pitch] = one
            if fed:
                score(du, zero, y, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
                      nil, slope_b, pitch, -rows)  # fmt: skip
            for r in range(rows):
                count = widths[b0 + r - known]
                g = gate[q_at + b0 + r] if recurrent and count > 0 else nil
                direct_count = count + 1 if direct else 1
                mean = weighted_mean(weight_a, slope_a, r * pitch, direct_count)
                score_gradient(weight_a, slope_a, r * pitch, direct_count, one - g, mean, scale)
                own_weight[r] = weight_a[r * pitch + direct_count - 1]
                own_slope[r] = slope_a[r * pitch + direct_count - 1]
                no_slope[r] = nil
                dgate[q_at + b0 + r] = nil
                if recurrent and count > 0:
                    mean_b = weighted_mean(weight_b, slope_b, r * pitch, count)
                    score_gradient(weight_b, slope_b, r * pitch, count, g, mean_b, scale)
                    dgate[q_at + b0 + r] = mean_b - mean
            # Queries take from sources.
            if direct:
                query(slope_a, pitch, own_slope, ka, x_at, dqa, q_at, offsets, table, starts, widths, known, b0, rows,
                      dk, size_k, group)  # fmt: skip
            if scored_b:
                query(slope_b, pitch, no_slope, kb, x_at, dqb, q_at, offsets, table, starts, widths, known, b0, rows,
                      dk, size_k, group)  # fmt: skip
            # Inputs, keys and earlier dU take from readers.
            if rounded:
                for r in range(rows):
                    column[r] = 0
                for source in range(rows + widths[b0 - known]):  # nearest first, as the columns of every row
                    j = b1 - 1 - source if source < rows else table[starts[b0 - known] + source - rows]
                    low, high = max(j + 1, b0), min(last_reader[j] + 1, end)
                    fresh = high <= b1  # no later block reads it
                    high = min(high, b1)
                    if direct:
                        _pass_on(weight_a, pitch, column, du, zero, dx, x_at, j, b0, low, high, fresh, d, size)
                        _pass_on(slope_a, pitch, column, qa, q_at, dka, x_at, j, b0, low, high, fresh, dk, size_k)
                    if fresh and j < b0:
                        copy_row(dy, x_at + j, du, j, d, size)
                    if fed and j < b0:
                        _pass_on(weight_b, pitch, column, du, zero, du, zero, j, b0, low, high, no, d, size)
                    if scored_b:
                        _pass_on(slope_b, pitch, column, qb, q_at, dkb, x_at, j, b0, low, high, fresh, dk, size_k)
                    for i in range(low, high):
                        column[i - b0] += 1
            else:
                for r in range(rows):
                    for c in range(widths[b0 + r - known]):
                        p, o = np.uint64(r * pitch + c), np.uint64(c * kept_pitch + b0 + r)
                        if direct:
                            kept_a[o] = weight_a[p]
                            kept_slope_a[o] = slope_a[p]
                        if recurrent:
                            kept_b[o] = weight_b[p]
                        if scored_b:
                            kept_slope_b[o] = slope_b[p]
                if direct:  # and dX from the block's own rows
                    _receive(
                        kept_a, kept_pitch, du, zero, dx, x_at, offsets, within, b0, b1, b0, b1, no, d, size, group
                    )
                _receive_keys(qa, qb, dka, dkb, kept_slope_a, kept_slope_b, kept_pitch, q_at, x_at, offsets, within,
                              b0, b1, known, end, dk, size_k, group, direct, scored_b)  # fmt: skip
            if not direct:
                for r in range(rows):
                    for e in range(0, d, len(size) * UNIT):
                        row = load(du, np.uint64((b0 + r) * d + e), size)
                        store(dx, np.uint64((x_at + b0 + r) * d + e), times(own_weight[np.uint64(r)], row))
            else:
                _add_self(own_weight, du, zero, dx, x_at, b0, rows, d, size)
                _add_self(own_slope, qa, q_at, dka, x_at, b0, rows, dk, size_k)
        if not rounded and known > 0:
            for row in range(known):
                copy_row(dy, x_at + row, du, row, d, size)
            _receive_far(kept_a, kept_b, kept_pitch, du, dx, x_at, offsets, within, zero, known, end, direct, recurrent,
                         d, size, group)  # fmt: skip
            _receive_keys(qa, qb, dka, dkb, kept_slope_a, kept_slope_b, kept_pitch, q_at, x_at, offsets, within,
                          zero, known, known, end, dk, size_k, group, direct, scored_b)  # fmt: skip
        for row in range(known):  # with known rows there is one sequence, and a job is a head
            copy_row(du, row, dy_known, job * known + row, d, size)
