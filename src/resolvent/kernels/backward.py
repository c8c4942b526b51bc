"""The fused backward sweep over one sequence of one head, from its end. Arrays and rows as in `forward.py`.

With U = A x and dU = (I - B)^-T dY, o = A~ x and m = B~ y:

    dg_i = <dU_i, m_i - o_i>
    dscoreA_ij = α_ij (<dU_i, x_j> - <dU_i, o_i>),   dX_j += α_ij dU_i
    dscoreB_ij = β_ij (<dU_i, y_j> - <dU_i, m_i>),   dU_j += β_ij dU_i

and <dU_i, o_i> = Σ_j A~_ij <dU_i, x_j>, so neither o nor m is needed. Weights are recomputed by the forward's `stats`.

Adding to rows in memory again and again is slow: every store holds up loads from rows a multiple of 4 KiB away. So what
j receives from its readers is gathered, with the sums in registers; dU and dX together, since both take from dU. In
translation-invariant patterns the readers of j are j + f(k): α, β and the gradients of the scores are kept for the head
at work (n × W, by columns), and a block takes what its rows receive from them. In rounded patterns the readers of j are
one run of rows: each block of readers passes on what it has for every row it reads.
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
    follows,
    locate,
    pitch_of,
    score,
)
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import (
    dot,
    exp_less,
    fma,
    fma_vectors,
    less,
    load,
    prefetch,
    product,
    splat,
    store,
    times,
)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _softmax_again(weights, pitch, columns, rows, top, factor):
    """The softmax from the scores and what the forward kept of it."""
    unit = (0,)
    for r in range(0, rows, UNIT):
        tops, factors = load(top, np.uint64(r), unit), load(factor, np.uint64(r), unit)
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            store(weights, o, product(factors, exp_less(load(weights, o, unit), tops)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _coefficients(weights, pitch, columns, rows, part, kept, kept_pitch, kept_at):
    """kept[c, r] = part[r] · weights[c, r]."""
    unit = (0,)
    units = rows // UNIT * UNIT
    for c in range(columns):
        for r in range(0, units, UNIT):
            w = load(weights, np.uint64(c * pitch + r), unit)
            store(kept, np.uint64(c * kept_pitch + kept_at + r), product(load(part, np.uint64(r), unit), w))
        for r in range(units, rows):  # what follows in `kept` is another block's
            w = weights[np.uint64(c * pitch + r)]
            kept[np.uint64(c * kept_pitch + kept_at + r)] = part[np.uint64(r)] * w


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _keep_slopes(slopes, pitch, columns, rows, kept, kept_pitch, kept_at):
    unit = (0,)
    units = rows // UNIT * UNIT
    for c in range(columns):
        for r in range(0, units, UNIT):
            store(kept, np.uint64(c * kept_pitch + kept_at + r), load(slopes, np.uint64(c * pitch + r), unit))
        for r in range(units, rows):
            kept[np.uint64(c * kept_pitch + kept_at + r)] = slopes[np.uint64(c * pitch + r)]


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _recall(stats, at, rows, top, factor):
    """What the forward kept of a softmax."""
    for r in range(rows):
        top[np.uint64(r)] = stats[np.uint64(at + STATS * r)]
        factor[np.uint64(r)] = stats[np.uint64(at + STATS * r + 1)]


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _score_gradient(weights, slopes, pitch, columns, rows, part, mean, scale):
    """Slopes become the gradients of the scores before scaling, and `mean` their means under the weights.

    Beyond a row's sources slopes are zero, and weights all but.
    """
    unit = (0,)
    for r in range(0, rows, UNIT):
        means = splat(mean.dtype.type(0), unit)
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            means = fma_vectors(load(weights, o, unit), load(slopes, o, unit), means)
        store(mean, np.uint64(r), means)
        factors = times(scale, load(part, np.uint64(r), unit))
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            coefficients = product(factors, load(weights, o, unit))
            store(slopes, o, product(coefficients, less(load(slopes, o, unit), means)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
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


@njit(error_model="numpy", _nrt=False, forceinline=True)
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


@njit(error_model="numpy", _nrt=False, forceinline=True)
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


@njit(error_model="numpy", _nrt=False, forceinline=True)
def query(
    weights, pitch, own, own_at, with_own, keys, keys_at, target, target_at, offsets, table, starts, widths, known, b0,
    rows, d, size, group,
):  # fmt: skip
    """target_i = Σ weights[c, r] · keys_j over the sources of row i, and own[own_at + r] · keys_i `with_own`."""
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
                    sums = splat(target.dtype.type(0), size)
                    if with_own:
                        sums = times(own[np.uint64(own_at + r)], load(keys, np.uint64((keys_at + i) * d + e), size))
                else:
                    sums = load(target, o, size)
                c1 = min(c0 + group, widths[i - known])
                sums = add(weights, r, pitch, keys, keys_at, offsets, table, starts, known, i, c0, c1, d, e, size, sums)
                store(target, o, sums)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _follow(x, gate, y, dy, dx, dgate, dy_known, x_at, q_at, known, known_at, end, d, size):
    """Where rows read the one before alone: one pass from the end, with dU in registers.

    dU_i = dY_i + g_{i+1} dU_{i+1},   dX_i = (1 - g_i) dU_i,   dg_i = <dU_i, y_{i-1} - x_i>
    """
    one, nil = gate.dtype.type(1), gate.dtype.type(0)
    for e in range(0, d, len(size) * UNIT):
        sums = splat(nil, size)
        g = nil  # of the row after
        for i in range(end - 1, known - 1, -1):
            o, at = np.uint64((x_at + i) * d + e), np.uint64(q_at + i)
            sums = fma(g, sums, load(dy, o, size))
            if i == 0:
                store(dx, o, sums)
                dgate[at] = nil
                break
            g = gate[at]
            store(dx, o, times(one - g, sums))
            slope = dot(sums, less(load(y, o - np.uint64(d), size), load(x, o, size)))
            dgate[at] = slope if e == 0 else dgate[at] + slope
        for row in range(known - 1, -1, -1):
            sums = fma(g, sums, load(dy, np.uint64((x_at + row) * d + e), size))
            store(dy_known, np.uint64((known_at + row) * d + e), sums)
            g = nil


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
    written.
    """
    one, nil, lowest = stats.dtype.type(1), stats.dtype.type(0), stats.dtype.type(LOWEST)
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    rounded = len(last_reader) > 0
    scored_b = recurrent and most > 1
    far = most > group
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        if follows(offsets, direct, recurrent):
            _follow(x, gate, y, dy, dx, dgate, dy_known, x_at, q_at, known, job * known, end, d, size)
            continue
        for b1 in range(end, known, -block):
            b0 = max(known, b1 - block)
            rows = b1 - b0
            width = zero
            for r in range(rows):
                count = widths[b0 + r - known]
                width = max(width, count)
                feed[r] = gate[q_at + b0 + r] if recurrent and count > 0 else nil
                keep[r] = one - feed[r]
            pitch = pitch_of(rows)
            kept_pitch, kept_at = (pitch, zero) if rounded else (len(widths) + known + UNIT, b0)
            itself = width * pitch  # the column of what rows take from themselves
            # The weights again, A~ and B~, and the coefficients, α and β.
            if scored_b:
                score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, no, weight_b, pitch, -rows)  # fmt: skip
                _recall(stats, STATS * (q_at + b0) + 2, rows, top, factor)
                _softmax_again(weight_b, pitch, width, rows, top, factor)
            elif recurrent:
                clear(weight_b, zero, width * pitch, one)
            if recurrent:
                _coefficients(weight_b, pitch, width, rows, feed, kept_b, kept_pitch, kept_at)
            if direct:
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, direct, weight_a, pitch, -rows)  # fmt: skip
                _recall(stats, STATS * (q_at + b0), rows, top, factor)
                _softmax_again(weight_a, pitch, width + 1, rows, top, factor)
                _coefficients(weight_a, pitch, width, rows, keep, kept_a, kept_pitch, kept_at)
            for r in range(rows):
                own[r] = keep[r] * weight_a[itself + r] if direct else keep[r]
            # dU and dX: what later rows pass on.
            if not rounded:
                if far:
                    _receive_far(kept_a, kept_b, kept_pitch, dy, du, dx, x_at, offsets, within, b0, b1, end, direct,
                                 recurrent, d, size_pair, group)  # fmt: skip
                _receive_near(kept_a, kept_b, kept_pitch, dy, own, du, dx, x_at, offsets, within, b0, b1,
                              b1 if far else end, far, direct, recurrent, d, size_pair)  # fmt: skip
            else:
                for r in range(rows):
                    column[r] = 0
                for number in range(rows + widths[b0 - known]):  # nearest first, as the columns of every row
                    j = b1 - 1 - number if number < rows else table[starts[b0 - known] + number - rows]
                    low, high = max(j + 1, b0), min(last_reader[j] + 1, end)
                    _pass_on(kept_a, kept_b, pitch, column, dy, own, du, dx, x_at, j, b0, low, min(high, b1),
                             high <= b1, direct, recurrent, d, size_pair)  # fmt: skip
                    for r in range(low - b0, min(high, b1) - b0):
                        column[np.uint64(r)] += 1
            # Slopes <dU_i, x_j> and <dU_i, y_j>, their means under the weights, and so the gradients of the scores.
            if direct:
                score(du, zero, x, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
                      nil, direct, slope_a, pitch, -rows)  # fmt: skip
                _score_gradient(weight_a, slope_a, pitch, width + 1, rows, keep, top, scale)
            else:
                for r in range(rows):
                    s = nil
                    for e in range(0, d, len(size) * UNIT):
                        row = load(du, np.uint64((b0 + r) * d + e), size)
                        s += dot(row, load(x, np.uint64((x_at + b0 + r) * d + e), size))
                    top[r] = s
            if recurrent and width > 0:
                score(du, zero, y, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
                      nil, no, slope_b, pitch, -rows)  # fmt: skip
                _score_gradient(weight_b, slope_b, pitch, width, rows, feed, factor, scale)
            for r in range(rows):
                fed = recurrent and widths[b0 + r - known] > 0
                dgate[q_at + b0 + r] = factor[r] - top[r] if fed else nil
            # Queries take from sources, keys from readers.
            if direct:
                query(slope_a, pitch, slope_a, itself, direct, ka, x_at, dqa, q_at, offsets, table, starts, widths,
                      known, b0, rows, dk, size_k, group)  # fmt: skip
                for r in range(rows):
                    own[r] = slope_a[itself + r]
            if scored_b:
                query(slope_b, pitch, slope_b, zero, no, kb, x_at, dqb, q_at, offsets, table, starts, widths, known,
                      b0, rows, dk, size_k, group)  # fmt: skip
            if not rounded:
                if direct:
                    _keep_slopes(slope_a, pitch, width, rows, kept_slope_a, kept_pitch, kept_at)
                    _receive(kept_slope_a, kept_pitch, qa, q_at, own, direct, dka, x_at, offsets, within, b0, b1, known,
                             end, dk, size_k, group)  # fmt: skip
                if scored_b:
                    _keep_slopes(slope_b, pitch, width, rows, kept_slope_b, kept_pitch, kept_at)
                    _receive(kept_slope_b, kept_pitch, qb, q_at, own, no, dkb, x_at, offsets, within, b0, b1, known,
                             end, dk, size_k, group)  # fmt: skip
            elif direct or scored_b:
                for r in range(rows):
                    column[r] = 0
                for number in range(rows + widths[b0 - known]):
                    j = b1 - 1 - number if number < rows else table[starts[b0 - known] + number - rows]
                    low, high = max(j + 1, b0), min(last_reader[j] + 1, end)
                    fresh = high <= b1  # no later block reads it
                    high = min(high, b1)
                    if direct:
                        _pass_on_keys(slope_a, pitch, column, qa, q_at, own, direct, dka, x_at, j, b0, low, high, fresh,
                                      dk, size_k)  # fmt: skip
                    if scored_b:
                        _pass_on_keys(slope_b, pitch, column, qb, q_at, own, no, dkb, x_at, j, b0, low, high, fresh, dk,
                                      size_k)  # fmt: skip
                    for r in range(low - b0, high - b0):
                        column[np.uint64(r)] += 1
        if not rounded and known > 0:
            kept_pitch = len(widths) + known + UNIT
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
