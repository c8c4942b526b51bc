"""What the backward sweeps share: weights again, gradients of scores, gates and queries.

Arrays and rows are as in `forward.py`.

With U = A x and dU = (I - B)^-T dY, o = A~ x and m = B~ y:

    dg_i = <dU_i, m_i - o_i>
    dscoreA_ij = α_ij (<dU_i, x_j> - <dU_i, o_i>),   dX_j += α_ij dU_i
    dscoreB_ij = β_ij (<dU_i, y_j> - <dU_i, m_i>),   dU_j += β_ij dU_i

and <dU_i, o_i> = Σ_j A~_ij <dU_i, x_j>, so neither o nor m is needed. Weights are recomputed by the forward's `stats`.

Adding to rows in memory again and again is slow: every store holds up loads from rows a multiple of 4 KiB away. So what
j receives from its readers is gathered, with the sums in registers; dU and dX together, since both take from dU. How
its readers are found tells the sweeps apart: `shifted.py`, `rounded.py`, and `scatter.py` where nothing is known.

A sweep is a kernel of its own, and what works on a block of rows is called, not inlined: each is compiled once, when
the first layer needs it, and half as much code is compiled in half the time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.kernels.forward import LOWEST, add, clear, score
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import dot, exp_less, fma_vectors, less, load, prefetch, product, splat, store, times


@njit(error_model="numpy", _nrt=False)
def _softmax_again(weights, pitch, columns, rows, top, factor):
    """The softmax from the scores and what the forward kept of it."""
    unit = (0,)
    for r in range(0, rows, UNIT):
        tops, factors = load(top, np.uint64(r), unit), load(factor, np.uint64(r), unit)
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            store(weights, o, product(factors, exp_less(load(weights, o, unit), tops)))


@njit(error_model="numpy", _nrt=False)
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


@njit(error_model="numpy", _nrt=False)
def _recall(stats, at, rows, top, factor):
    """What the forward kept of a softmax."""
    for r in range(rows):
        top[np.uint64(r)] = stats[np.uint64(at + STATS * r)]
        factor[np.uint64(r)] = stats[np.uint64(at + STATS * r + 1)]


@njit(error_model="numpy", _nrt=False)
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


@njit(error_model="numpy", _nrt=False)
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


@njit(error_model="numpy", _nrt=False)
def weights_again(
    qa, ka, qb, kb, gate, stats, x_at, q_at, offsets, table, starts, widths, known, b0, rows, pitch, dk, size_k, scale,
    direct, recurrent, scored_b, group, weight_a, weight_b, keep, feed, top, factor, own, kept_a, kept_b, kept_pitch,
    kept_at,
):  # fmt: skip
    """A~ and B~ of a block of rows, the coefficients α and β (`kept`), and what rows take of themselves (`own`).

    Returns the number of sources of the widest row.
    """
    one, nil, lowest = stats.dtype.type(1), stats.dtype.type(0), stats.dtype.type(LOWEST)
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    width = zero
    for r in range(rows):
        count = widths[b0 + r - known]
        width = max(width, count)
        feed[r] = gate[q_at + b0 + r] if recurrent and count > 0 else nil
        keep[r] = one - feed[r]
    if scored_b:
        score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk, size_k,
              lowest, no, weight_b, pitch, -rows)  # fmt: skip
        _recall(stats, STATS * (q_at + b0) + 2, rows, top, factor)
        _softmax_again(weight_b, pitch, width, rows, top, factor)
    elif recurrent:
        clear(weight_b, zero, width * pitch, one)
    if recurrent:
        _coefficients(weight_b, pitch, width, rows, feed, kept_b, kept_pitch, kept_at)
    if direct:
        score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk, size_k,
              lowest, direct, weight_a, pitch, -rows)  # fmt: skip
        _recall(stats, STATS * (q_at + b0), rows, top, factor)
        _softmax_again(weight_a, pitch, width + 1, rows, top, factor)
        _coefficients(weight_a, pitch, width, rows, keep, kept_a, kept_pitch, kept_at)
    for r in range(rows):
        own[r] = keep[r] * weight_a[width * pitch + r] if direct else keep[r]
    return width


@njit(error_model="numpy", _nrt=False)
def score_gradients(
    x, y, du, ka, kb, dqa, dqb, dgate, x_at, q_at, offsets, table, starts, widths, known, b0, rows, width, pitch, d, dk,
    size, size_k, scale, direct, recurrent, scored_b, group, weight_a, weight_b, slope_a, slope_b, keep, feed, top,
    factor, own,
):  # fmt: skip
    """From dU of a block of rows: gradients of scores (`slope`), of gates, and of queries, which take from sources.

    `own` becomes what a row's key takes of its own query.
    """
    one, nil = dgate.dtype.type(1), dgate.dtype.type(0)
    zero, no = np.int64(0), known < 0
    itself = width * pitch  # the column of what rows take from themselves
    # Slopes <dU_i, x_j> and <dU_i, y_j>, their means under the weights, and so the gradients of the scores.
    if direct:
        score(du, zero, x, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size, nil,
              direct, slope_a, pitch, -rows)  # fmt: skip
        _score_gradient(weight_a, slope_a, pitch, width + 1, rows, keep, top, scale)
    else:
        for r in range(rows):
            s = nil
            for e in range(0, d, len(size) * UNIT):
                row = load(du, np.uint64((b0 + r) * d + e), size)
                s += dot(row, load(x, np.uint64((x_at + b0 + r) * d + e), size))
            top[r] = s
    if recurrent and width > 0:
        score(du, zero, y, x_at, one, offsets, table, starts, widths, known, b0, rows, width, group, d, size, nil, no,
              slope_b, pitch, -rows)  # fmt: skip
        _score_gradient(weight_b, slope_b, pitch, width, rows, feed, factor, scale)
    for r in range(rows):
        fed = recurrent and widths[b0 + r - known] > 0
        dgate[q_at + b0 + r] = factor[r] - top[r] if fed else nil
    if direct:
        query(slope_a, pitch, slope_a, itself, direct, ka, x_at, dqa, q_at, offsets, table, starts, widths, known, b0,
              rows, dk, size_k, group)  # fmt: skip
        for r in range(rows):
            own[r] = slope_a[itself + r]
    if scored_b:
        query(slope_b, pitch, slope_b, zero, no, kb, x_at, dqb, q_at, offsets, table, starts, widths, known, b0, rows,
              dk, size_k, group)  # fmt: skip
