"""Fused sweeps over one head, compiled by Numba: scores on the pattern, softmax, gate, direct part and recurrence.

A head is swept in blocks of `BLOCK` rows. Within a block everything that does not depend on the block's own outputs is
done for a few sources of all rows at a time, so that neighbouring strides meet in the cache, and the exponentials run
over whole vectors of rows; only reads of the block's own outputs go row by row. Arrays are flat, a row being
`array[(head * n + i) * d : ... + d]`. Nothing of size n × W is kept: the backward sweep recomputes the weights from the
log-sum-exps of the rows.

Indices into flat arrays are unsigned, which spares Numba the check for negative ones and lets LLVM vectorise.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import overload

BLOCK = 256
_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}  # no assumption about NaN or infinity
_LOWEST = -3e38  # the score of what is not there


def exp_minus(scores, subtract, width, rows):  # compiled from the overload below
    """scores[c, r] ← exp(scores[c, r] - subtract[r]) for c < width, r < rows."""


@overload(exp_minus)
def _exp_minus(scores, subtract, width, rows):
    if scores.dtype == types.float32:

        def in_float32(scores, subtract, width, rows):
            # 2^z = 2^floor(z) · 2^frac(z): the exponent's bits, and a polynomial (relative error 2e-7).
            bits = scores.view(np.int32)
            for c in range(width):
                for r in range(rows):
                    z = (scores[c, r] - subtract[r]) * np.float32(1.4426950408889634)
                    z = np.float32(-126.0) if z < np.float32(-126.0) else z  # not max(): NaN must stay NaN
                    whole = np.floor(z)
                    f = z - whole
                    p = np.float32(1.8775767e-3)
                    p = p * f + np.float32(8.9893397e-3)
                    p = p * f + np.float32(5.5826318e-2)
                    p = p * f + np.float32(2.4015361e-1)
                    p = p * f + np.float32(6.9315308e-1)
                    p = p * f + np.float32(9.9999994e-1)
                    scores[c, r] = p
                    bits[c, r] += np.int32(np.int32(whole) << np.int32(23))

        return in_float32

    def in_float64(scores, subtract, width, rows):
        for c in range(width):
            for r in range(rows):
                scores[c, r] = math.exp(scores[c, r] - subtract[r])

    return in_float64


@njit
def _list_sources(offsets, table, i0, rows, width, index):
    """index[c, r] = the c-th nearest source of row i0 + r, or -1. Offsets if the pattern has them, else the table."""
    for c in range(width):
        for r in range(rows):
            j = i0 + r - offsets[c] if len(offsets) else table[i0 + r, c]
            index[c, r] = j if j >= 0 else -1


@njit(error_model="numpy", fastmath=_FAST)
def _score(q, k, index, head, i0, rows, width, n, d, scale, missing, scores):
    """scores[c, r] = scale · <q_i, k_j> over the sources j of row i = i0 + r, or `missing`; four at a time."""
    zero, length = np.uint64(0), np.uint64(d)
    for c in range(0, width - 3, 4):
        for r in range(rows):
            o = np.uint64((head * n + i0 + r) * d)
            p0 = np.uint64((head * n + index[c, r]) * d) if index[c, r] >= 0 else o
            p1 = np.uint64((head * n + index[c + 1, r]) * d) if index[c + 1, r] >= 0 else o
            p2 = np.uint64((head * n + index[c + 2, r]) * d) if index[c + 2, r] >= 0 else o
            p3 = np.uint64((head * n + index[c + 3, r]) * d) if index[c + 3, r] >= 0 else o
            t0 = t1 = t2 = t3 = q.dtype.type(0)
            for e in range(zero, length):
                t0 += q[o + e] * k[p0 + e]
                t1 += q[o + e] * k[p1 + e]
                t2 += q[o + e] * k[p2 + e]
                t3 += q[o + e] * k[p3 + e]
            scores[c, r] = t0 * scale if p0 != o else missing
            scores[c + 1, r] = t1 * scale if p1 != o else missing
            scores[c + 2, r] = t2 * scale if p2 != o else missing
            scores[c + 3, r] = t3 * scale if p3 != o else missing
    for c in range(width // 4 * 4, width):
        for r in range(rows):
            o = np.uint64((head * n + i0 + r) * d)
            p = np.uint64((head * n + index[c, r]) * d) if index[c, r] >= 0 else o
            t = q.dtype.type(0)
            for e in range(zero, length):
                t += q[o + e] * k[p + e]
            scores[c, r] = t * scale if p != o else missing


@njit(error_model="numpy", fastmath=_FAST)
def _score_self(q, k, head, i0, rows, n, d, scale, scores, at):
    for r in range(rows):
        o = np.uint64((head * n + i0 + r) * d)
        total = q.dtype.type(0)
        for e in range(np.uint64(0), np.uint64(d)):
            total += q[o + e] * k[o + e]
        scores[at, r] = total * scale


@njit(error_model="numpy", fastmath=_FAST)
def _softmax(scores, width, rows, highest, total, lse, at):
    """Weights in place; `lse[at + r]` gets the log-sum-exp of row r."""
    for r in range(rows):
        highest[r] = _LOWEST
        total[r] = 0
    for c in range(width):
        for r in range(rows):
            highest[r] = max(highest[r], scores[c, r])
    exp_minus(scores, highest, width, rows)
    for c in range(width):
        for r in range(rows):
            total[r] += scores[c, r]
    for r in range(rows):
        lse[at + r] = highest[r] + math.log(total[r])
        total[r] = total.dtype.type(1) / total[r]
    for c in range(width):
        for r in range(rows):
            scores[c, r] *= total[r]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def forward(
    x, qa, ka, qb, kb, gate, y, lse_a, lse_b,
    offsets, table, widths, n, d, dk, scale, direct, recurrent, first, last,
):  # fmt: skip
    """Heads first … last - 1: y and the log-sum-exps. `widths[i]` is the number of sources of row i."""
    most = widths.max() if n else 0
    weight_a = np.empty((most + 1, BLOCK), dtype=x.dtype)
    weight_b = np.empty((most + 1, BLOCK), dtype=x.dtype)
    index = np.empty((most + 1, BLOCK), dtype=np.int64)
    highest = np.empty(BLOCK, dtype=x.dtype)
    total = np.empty(BLOCK, dtype=x.dtype)
    out = np.empty(BLOCK * d, dtype=x.dtype)
    g = np.empty(BLOCK, dtype=x.dtype)
    keep = np.empty(BLOCK, dtype=x.dtype)
    zero, length = np.uint64(0), np.uint64(d)
    for head in range(first, last):
        for i0 in range(0, n, BLOCK):
            rows = min(BLOCK, n - i0)
            at = head * n + i0
            width = widths[i0 : i0 + rows].max()
            _list_sources(offsets, table, i0, rows, width, index)
            for r in range(rows):
                g[r] = gate[at + r] if recurrent and widths[i0 + r] > 0 else x.dtype.type(0)
                keep[r] = x.dtype.type(1) - g[r]
            wide = width if direct else 0
            if direct:
                _score(qa, ka, index, head, i0, rows, width, n, dk, scale, _LOWEST, weight_a)
                _score_self(qa, ka, head, i0, rows, n, dk, scale, weight_a, width)
                _softmax(weight_a, width + 1, rows, highest, total, lse_a, at)
            else:
                for r in range(rows):
                    weight_a[0, r] = 1
            for c in range(wide + 1):
                for r in range(rows):
                    weight_a[c, r] *= keep[r]
            if recurrent and most == 1:  # a softmax over one source is 1, whatever the score
                for r in range(rows):
                    weight_b[0, r] = 1
            elif recurrent and width > 0:
                _score(qb, kb, index, head, i0, rows, width, n, dk, scale, _LOWEST, weight_b)
                _softmax(weight_b, width, rows, highest, total, lse_b, at)
            if recurrent:
                for c in range(width):
                    for r in range(rows):
                        weight_b[c, r] *= g[r]
            for r in range(rows):
                o, s = np.uint64((at + r) * d), np.uint64(r * d)
                w = weight_a[wide, r]
                for e in range(zero, length):
                    out[s + e] = w * x[o + e]
            if direct:
                _gather(x, weight_a, index, head, i0, rows, width, n, n, d, out, 0)
            if recurrent:
                for r in range(rows):  # rows of this block count as zero until they are known
                    o = np.uint64((at + r) * d)
                    for e in range(zero, length):
                        y[o + e] = 0
                _gather(y, weight_b, index, head, i0, rows, width, i0, n, d, out, 0)
            for r in range(rows):  # outputs of this block, in order
                o, s = np.uint64((at + r) * d), np.uint64(r * d)
                inside = 0  # sources come nearest first, so those in the block come first
                while recurrent and inside < widths[i0 + r] and index[inside, r] >= i0:
                    inside += 1
                for c in range(inside % 4, inside, 4):
                    p0 = np.uint64((head * n + index[c, r]) * d)
                    p1 = np.uint64((head * n + index[c + 1, r]) * d)
                    p2 = np.uint64((head * n + index[c + 2, r]) * d)
                    p3 = np.uint64((head * n + index[c + 3, r]) * d)
                    v0, v1, v2, v3 = weight_b[c, r], weight_b[c + 1, r], weight_b[c + 2, r], weight_b[c + 3, r]
                    for e in range(zero, length):
                        out[s + e] += v3 * y[p3 + e] + v2 * y[p2 + e] + v1 * y[p1 + e] + v0 * y[p0 + e]
                for c in range(inside % 4 - 1, -1, -1):
                    p = np.uint64((head * n + index[c, r]) * d)
                    v = weight_b[c, r]
                    for e in range(zero, length):
                        out[s + e] += v * y[p + e]
                for e in range(zero, length):
                    y[o + e] = out[s + e]


@njit(error_model="numpy", fastmath=_FAST)
def _gather(values, weights, index, head, i0, rows, width, before, n, d, out, start):
    """Row r of `out`, which begins at `start`, += Σ_c weights[c, r] · values_j over the sources j < before.

    Sources that do not count are replaced by the row itself with weight zero.
    """
    zero, length = np.uint64(0), np.uint64(d)
    nil, last = weights.dtype.type(0), before - 1
    for c in range(0, width - 3, 4):
        for r in range(rows):
            o, s = np.uint64((head * n + i0 + r) * d), np.uint64(start + r * d)
            j0, j1, j2, j3 = index[c, r], index[c + 1, r], index[c + 2, r], index[c + 3, r]
            if j3 > last:  # the nearest of four come first: none of them counts
                continue
            p0, w0 = (np.uint64((head * n + j0) * d), weights[c, r]) if 0 <= j0 <= last else (o, nil)
            p1, w1 = (np.uint64((head * n + j1) * d), weights[c + 1, r]) if 0 <= j1 <= last else (o, nil)
            p2, w2 = (np.uint64((head * n + j2) * d), weights[c + 2, r]) if 0 <= j2 <= last else (o, nil)
            p3, w3 = (np.uint64((head * n + j3) * d), weights[c + 3, r]) if 0 <= j3 <= last else (o, nil)
            for e in range(zero, length):
                out[s + e] += w0 * values[p0 + e] + w1 * values[p1 + e] + w2 * values[p2 + e] + w3 * values[p3 + e]
    for c in range(width // 4 * 4, width):
        for r in range(rows):
            j = index[c, r]
            if 0 <= j <= last:
                p, s, w = np.uint64((head * n + j) * d), np.uint64(start + r * d), weights[c, r]
                for e in range(zero, length):
                    out[s + e] += w * values[p + e]


# The adjoint of the gated layer. With U = A x and dU = (I - B)^-T dY, o = A~ x and m = B~ y:
#     dg_i = <dU_i, m_i - o_i>
#     dscoreA_ij = α_ij (<dU_i, x_j> - <dU_i, o_i>),   dX_j += α_ij dU_i
#     dscoreB_ij = β_ij (<dU_i, y_j> - <dU_i, m_i>),   dU_j += β_ij dU_i
# and <dU_i, o_i> = Σ_j A~_ij <dU_i, x_j>, so neither o nor m is needed.
@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def backward(
    x, qa, ka, qb, kb, gate, y, lse_a, lse_b,
    du, dx, dqa, dka, dqb, dkb, dgate,
    offsets, table, widths, n, d, dk, scale, direct, recurrent, first, last,
):  # fmt: skip
    """One reverse sweep per head. `du` holds dY on entry and dU on return; the other gradients start at zero."""
    most = widths.max() if n else 0
    weight_a = np.empty((most + 1, BLOCK), dtype=x.dtype)
    weight_b = np.empty((most + 1, BLOCK), dtype=x.dtype)
    slope_a = np.empty((most + 1, BLOCK), dtype=x.dtype)
    slope_b = np.empty((most + 1, BLOCK), dtype=x.dtype)
    index = np.empty((most + 1, BLOCK), dtype=np.int64)
    mean_a = np.empty(BLOCK, dtype=x.dtype)
    mean_b = np.empty(BLOCK, dtype=x.dtype)
    g = np.empty(BLOCK, dtype=x.dtype)
    keep = np.empty(BLOCK, dtype=x.dtype)
    rounded = len(offsets) == 0
    place = np.empty((most + 1, BLOCK), dtype=np.int64)
    sums = np.empty((most + BLOCK) * (max(d, dk) + 16), dtype=x.dtype)
    one = x.dtype.type(1)
    for head in range(first, last):
        for i0 in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            rows = min(BLOCK, n - i0)
            at = head * n + i0
            width = widths[i0 : i0 + rows].max()
            fed = recurrent and width > 0
            wide = width if direct else 0
            _list_sources(offsets, table, i0, rows, width, index)
            if rounded:
                _place_sources(index, i0, rows, width, place)
            for r in range(rows):
                g[r] = gate[at + r] if recurrent and widths[i0 + r] > 0 else x.dtype.type(0)
                keep[r] = one - g[r]
                mean_a[r] = 0
                mean_b[r] = 0
            # The weights again, A~ and B~.
            if direct:
                _score(qa, ka, index, head, i0, rows, width, n, dk, scale, _LOWEST, weight_a)
                _score_self(qa, ka, head, i0, rows, n, dk, scale, weight_a, width)
                exp_minus(weight_a, lse_a[at : at + rows], width + 1, rows)
            else:
                for r in range(rows):
                    weight_a[0, r] = 1
            if fed:
                if most == 1:
                    for r in range(rows):
                        weight_b[0, r] = 1
                else:
                    _score(qb, kb, index, head, i0, rows, width, n, dk, scale, _LOWEST, weight_b)
                    exp_minus(weight_b, lse_b[at : at + rows], width, rows)
                _finish_du(du, weight_b, g, index, widths, head, i0, rows, n, d)
            # Slopes <dU_i, x_j> and <dU_i, y_j>, and their means under the weights.
            if direct:
                _score(du, x, index, head, i0, rows, width, n, d, one, 0, slope_a)
            _score_self(du, x, head, i0, rows, n, d, one, slope_a, wide)
            for c in range(wide + 1):
                for r in range(rows):
                    mean_a[r] += weight_a[c, r] * slope_a[c, r]
            if fed:
                _score(du, y, index, head, i0, rows, width, n, d, one, 0, slope_b)
                for c in range(width):
                    for r in range(rows):
                        mean_b[r] += weight_b[c, r] * slope_b[c, r]
            for r in range(rows):
                if recurrent and widths[i0 + r] > 0:
                    dgate[at + r] = mean_b[r] - mean_a[r]
            # Slopes become gradients of the scores, weights become coefficients.
            for c in range(wide + 1):
                for r in range(rows):
                    weight_a[c, r] *= keep[r]
                    slope_a[c, r] = scale * weight_a[c, r] * (slope_a[c, r] - mean_a[r])
            _scatter_self(dx, du, weight_a, wide, head, i0, rows, n, d)
            if direct:
                if rounded:
                    _scatter_rounded(dx, du, weight_a, index, place, sums, head, i0, rows, width, n, n, d)
                    _scatter_rounded(dka, qa, slope_a, index, place, sums, head, i0, rows, width, n, n, dk)
                else:
                    _scatter(dx, du, weight_a, index, head, i0, rows, width, n, n, d)
                    _scatter(dka, qa, slope_a, index, head, i0, rows, width, n, n, dk)
                _scatter_self(dqa, ka, slope_a, width, head, i0, rows, n, dk)
                _scatter_self(dka, qa, slope_a, width, head, i0, rows, n, dk)
                _gather(ka, slope_a, index, head, i0, rows, width, n, n, dk, dqa, at * dk)
            if fed:
                for c in range(width):
                    for r in range(rows):
                        weight_b[c, r] *= g[r]
                        slope_b[c, r] = scale * weight_b[c, r] * (slope_b[c, r] - mean_b[r])
                if rounded:
                    _scatter_rounded(du, du, weight_b, index, place, sums, head, i0, rows, width, i0, n, d)
                else:
                    _scatter(du, du, weight_b, index, head, i0, rows, width, i0, n, d)
            if fed and most > 1:
                _gather(kb, slope_b, index, head, i0, rows, width, n, n, dk, dqb, at * dk)
                if rounded:
                    _scatter_rounded(dkb, qb, slope_b, index, place, sums, head, i0, rows, width, n, n, dk)
                else:
                    _scatter(dkb, qb, slope_b, index, head, i0, rows, width, n, n, dk)


@njit(error_model="numpy", fastmath=_FAST)
def _finish_du(du, weight_b, g, index, widths, head, i0, rows, n, d):
    """Pass dU on within the block, last row first; later blocks have passed theirs on already."""
    for r in range(rows - 1, -1, -1):
        o = np.uint64((head * n + i0 + r) * d)
        for c in range(widths[i0 + r]):
            j = index[c, r]
            if j < i0:
                break  # sources come nearest first
            p = np.uint64((head * n + j) * d)
            v = weight_b[c, r] * g[r]
            for e in range(np.uint64(0), np.uint64(d)):
                du[p + e] += v * du[o + e]


@njit
def _place_sources(index, i0, rows, width, place):
    """Where a rounded pattern's block keeps its sums: place[c, r] < BLOCK for rows of the block, then the positions
    that row i0 reads. Positions are dropped and never come back, so no row of the block reads any other.
    """
    for r in range(rows):
        k = 0
        for c in range(width):
            j = index[c, r]
            if j >= i0:
                place[c, r] = j - i0
            elif j >= 0:
                while index[k, 0] != j:
                    k += 1
                place[c, r] = BLOCK + k


@njit(error_model="numpy", fastmath=_FAST)
def _scatter(target, values, weights, index, head, i0, rows, width, before, n, d):
    """target_j += weights[c, r] · values_i for the sources j < before of row i = i0 + r."""
    zero, length = np.uint64(0), np.uint64(d)
    for c0 in range(0, width, 4):
        for r in range(rows):
            o = np.uint64((head * n + i0 + r) * d)
            for c in range(c0, min(c0 + 4, width)):
                j = index[c, r]
                if 0 <= j < before:
                    p, w = np.uint64((head * n + j) * d), weights[c, r]
                    for e in range(zero, length):
                        target[p + e] += w * values[o + e]


@njit(error_model="numpy", fastmath=_FAST)
def _scatter_rounded(target, values, weights, index, place, sums, head, i0, rows, width, before, n, d):
    """`_scatter` for a rounded pattern, whose block reads few positions many times: sum them up close together first.

    The sums lie `d + 16` apart. Rows of the arrays themselves are often a power of two apart, and then a store to one
    holds up loads from the others.
    """
    pitch = d + 16
    zero, length = np.uint64(0), np.uint64(d)
    for place_ in range(BLOCK + width):
        p = np.uint64(place_ * pitch)
        for e in range(zero, length):
            sums[p + e] = 0
    for c0 in range(0, width, 4):
        for r in range(rows):
            o = np.uint64((head * n + i0 + r) * d)
            for c in range(c0, min(c0 + 4, width)):
                if 0 <= index[c, r] < before:
                    p, w = np.uint64(place[c, r] * pitch), weights[c, r]
                    for e in range(zero, length):
                        sums[p + e] += w * values[o + e]
    for r in range(rows if before > i0 else 0):
        o, p = np.uint64((head * n + i0 + r) * d), np.uint64(r * pitch)
        for e in range(zero, length):
            target[o + e] += sums[p + e]
    for k in range(width):
        if index[k, 0] >= 0:
            o, p = np.uint64((head * n + index[k, 0]) * d), np.uint64((BLOCK + k) * pitch)
            for e in range(zero, length):
                target[o + e] += sums[p + e]


@njit(error_model="numpy", fastmath=_FAST)
def _scatter_self(target, values, weights, at, head, i0, rows, n, d):
    """target_i += weights[at, r] · values_i."""
    for r in range(rows):
        o, w = np.uint64((head * n + i0 + r) * d), weights[at, r]
        for e in range(np.uint64(0), np.uint64(d)):
            target[o + e] += w * values[o + e]
