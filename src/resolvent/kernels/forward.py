"""The fused forward sweep over one sequence of one head: scores on the pattern, softmax, gate, A x and the recurrence.

A sequence is swept in blocks of rows. What does not depend on the block's own outputs is done for a group of sources
of all rows at a time, one array after another, so that the windows of neighbouring strides meet in the cache and rows
a power of two apart do not evict each other; only reads of the block's own outputs go row by row. Sums stay in
registers (`vectors.py`). Nothing of size n × W is kept.

Scores and weights lie by columns, `[c · pitch + r]` for source c of row r of the block: a softmax then runs over the
rows of a vector at a time, and nothing is added up across a register.

Arrays are flat. Rows are numbered within the sequence, those known from before first; `x_at` is where its rows begin in
x, ka, kb and y, `q_at` where they would begin in qa, qb and gate if these had the known rows, too. Row i reads
`widths[i - known]` rows, nearest first: `i - offsets[c]`, or `table[starts[i - known] + c]` where they are listed.

Indices are unsigned where they address arrays: that spares Numba the check for negative ones. `_nrt=False`: no counting
of references, which would cost more than the work itself; so scratch arrays come from outside.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.vectors import (
    add_apart,
    dot,
    dots,
    exp_less,
    fma,
    inverse,
    larger,
    load,
    plus,
    prefetch,
    product,
    splat,
    store,
    store_apart,
    times,
)

LOWEST = -np.inf  # the score of what is not there: below every other


@njit(error_model="numpy", _nrt=False, forceinline=True)
def locate(job, cuts, known):
    """A job is a sequence of a head: where its rows begin in x and in qa (`x_at`, `q_at`), and how many there are."""
    head, sequence = job // (len(cuts) - 1), job % (len(cuts) - 1)
    x_at = head * (known + cuts[-1]) + cuts[sequence]
    q_at = head * cuts[-1] + cuts[sequence] - known
    return x_at, q_at, known + cuts[sequence + 1] - cuts[sequence]


@njit(error_model="numpy", _nrt=False, forceinline=True)
def pitch_of(rows):
    """Numbers from one column to the next: an odd count of vector units, or columns would evict each other."""
    units = (rows + UNIT - 1) // UNIT
    return (units + 1 - units % 2) * UNIT


@njit(error_model="numpy", _nrt=False, forceinline=True)
def source(offsets, table, starts, known, i, c):
    """The row that row i reads as number c."""
    return i - offsets[np.uint64(c)] if len(offsets) else table[np.uint64(starts[np.uint64(i - known)] + c)]


@njit(error_model="numpy", _nrt=False)
def score(
    left, left_at, right, right_at, factor, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
    beyond, own, out, pitch, ahead,
):  # fmt: skip
    """out[c, r] = factor · <left_i, right_j> over the sources of the rows i = b0 + r, and `beyond` after them.

    With `own`, the column after the sources of the widest row is for the row itself. A group of sources at a time, and
    the rows `ahead` of these are asked for, which come next.
    """
    least = width
    for r in range(rows):
        least = min(least, widths[np.uint64(b0 + r - known)])
    clear(out, least * pitch, width * pitch, beyond)
    for c0 in range(0, max(width, 1), group):
        for r in range(rows):
            i = b0 + r
            c1 = min(c0 + group, widths[np.uint64(i - known)])
            fours = c0 + max(c1 - c0, 0) // 4 * 4
            for e in range(0, d, len(size) * UNIT):
                row = load(left, np.uint64((left_at + i) * d + e), size)
                if c0 == 0:
                    prefetch(left, np.uint64((left_at + i + ahead) * d + e), size)
                    prefetch(right, np.uint64((right_at + i + ahead) * d + e), size)
                    if own:
                        s = factor * dot(row, load(right, np.uint64((right_at + i) * d + e), size))
                        o = np.uint64(width * pitch + r)
                        out[o] = s if e == 0 else out[o] + s
                for c in range(c0, fours, 4):
                    j0 = source(offsets, table, starts, known, i, c)
                    j1 = source(offsets, table, starts, known, i, c + 1)
                    j2 = source(offsets, table, starts, known, i, c + 2)
                    j3 = source(offsets, table, starts, known, i, c + 3)
                    four = dots(
                        row,
                        load(right, np.uint64((right_at + j0) * d + e), size),
                        load(right, np.uint64((right_at + j1) * d + e), size),
                        load(right, np.uint64((right_at + j2) * d + e), size),
                        load(right, np.uint64((right_at + j3) * d + e), size),
                    )
                    if e == 0:
                        store_apart(out, np.uint64(c * pitch + r), np.uint64(pitch), times(factor, four))
                    else:
                        add_apart(out, np.uint64(c * pitch + r), np.uint64(pitch), times(factor, four))
                for c in range(fours, c1):
                    j = source(offsets, table, starts, known, i, c)
                    s = factor * dot(row, load(right, np.uint64((right_at + j) * d + e), size))
                    o = np.uint64(c * pitch + r)
                    out[o] = s if e == 0 else out[o] + s


@njit(error_model="numpy", _nrt=False, forceinline=True)
def add(weights, r, pitch, values, values_at, offsets, table, starts, known, i, c0, c1, d, e, size, start):
    """`start` + Σ weights[c, r] · values_j over the sources c0 ≤ c < c1 of row i, farthest first, from element e."""
    for c in range(c1 - 1, c0 - 1, -1):
        j = source(offsets, table, starts, known, i, c)
        weight = weights[np.uint64(c * pitch + r)]
        start = fma(weight, load(values, np.uint64((values_at + j) * d + e), size), start)
    return start


@njit(error_model="numpy", _nrt=False, forceinline=True)
def copy_row(source, source_at, target, target_at, d, size):
    for e in range(0, d, len(size) * UNIT):
        store(target, np.uint64(target_at * d + e), load(source, np.uint64(source_at * d + e), size))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def clear(array, first, last, value):
    for c in range(first, last, UNIT):
        store(array, np.uint64(c), splat(array.dtype.type(value), (0,)))


@njit(error_model="numpy", _nrt=False)
def _softmax(weights, pitch, columns, rows, scale, top, factor):
    """Weights become scale[r] · softmax; `top` and `factor` are what it took. Rows without any source become NaN."""
    unit = (0,)
    for r in range(0, rows, UNIT):
        tops = load(weights, np.uint64(r), unit)
        for c in range(1, columns):
            tops = larger(tops, load(weights, np.uint64(c * pitch + r), unit))
        sums = splat(weights.dtype.type(0), unit)
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            powers = exp_less(load(weights, o, unit), tops)
            sums = plus(sums, powers)
            store(weights, o, powers)
        factors = inverse(sums)
        store(top, np.uint64(r), tops)
        store(factor, np.uint64(r), factors)
        factors = product(factors, load(scale, np.uint64(r), unit))
        for c in range(columns):
            o = np.uint64(c * pitch + r)
            store(weights, o, product(factors, load(weights, o, unit)))


@njit(error_model="numpy", _nrt=False)
def _keep_stats(stats, at, top, factor, rows):
    for r in range(rows):
        stats[np.uint64(at + STATS * r)] = top[np.uint64(r)]
        stats[np.uint64(at + STATS * r + 1)] = factor[np.uint64(r)]


@njit(error_model="numpy", _nrt=False, forceinline=True)
def count_inside(offsets, table, starts, widths, known, b0, i):
    """How many sources of row i lie in the block from b0: sources come nearest first, so those come first."""
    k, count = 0, widths[i - known]
    while k < count and source(offsets, table, starts, known, i, k) >= b0:
        k += 1
    return k


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def forward(
    x, qa, ka, qb, kb, gate, y, stats,
    offsets, table, starts, widths, cuts, known, most, d, dk, size, size_k, scale, direct, recurrent, block, group,
    weight_a, weight_b, keep, feed, top, factor, inside, first, last,
):  # fmt: skip
    """Jobs first … last - 1, a job being a sequence of a head. `most` is the largest of `widths`."""
    lanes = len(size) * UNIT
    one, nil, lowest = stats.dtype.type(1), stats.dtype.type(0), stats.dtype.type(LOWEST)
    zero, no = np.int64(0), known < 0  # literals would be types of their own, and functions compiled for each
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for b0 in range(known, end, block):
            rows = min(block, end - b0)
            width = zero
            for r in range(rows):
                width = max(width, widths[b0 + r - known])
            pitch = pitch_of(rows)
            narrow = width <= UNIT
            if recurrent and most > 1:
                score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, no, weight_b, pitch, rows)  # fmt: skip
            if direct:
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, lowest, direct, weight_a, pitch, rows)  # fmt: skip
            for r in range(rows):
                i = b0 + r
                count = widths[i - known]
                g = gate[q_at + i] if recurrent and count > 0 else nil
                feed[r] = g
                keep[r] = one - g
                inside[r] = count if narrow else count_inside(offsets, table, starts, widths, known, b0, i)
            at = STATS * (q_at + b0)
            if direct:
                _softmax(weight_a, pitch, width + 1, rows, keep, top, factor)
                _keep_stats(stats, at, top, factor, rows)
            if recurrent and width > 0:
                if most > 1:
                    _softmax(weight_b, pitch, width, rows, feed, top, factor)
                    for r in range(rows):
                        if widths[b0 + r - known] == 0:
                            top[r] = factor[r] = nil
                    _keep_stats(stats, at + 2, top, factor, rows)
                else:  # over one source it is 1, whatever the score
                    for r in range(rows):
                        weight_b[r] = feed[r]
            for c0 in range(0, max(width, 1) if direct else 1, group):  # A x
                for r in range(rows):
                    i = b0 + r
                    count = widths[i - known] if direct else zero
                    for e in range(0, d, lanes):
                        o = np.uint64((x_at + i) * d + e)
                        if c0 == 0:
                            w = weight_a[np.uint64(width * pitch + r)] if direct else keep[r]
                            sums = times(w, load(x, o, size))
                            prefetch(x, o + np.uint64(rows * d), size)
                            prefetch(y, o + np.uint64(rows * d), size)
                        else:
                            sums = load(y, o, size)
                        c1 = min(c0 + group, count)
                        sums = add(
                            weight_a, r, pitch, x, x_at, offsets, table, starts, known, i, c0, c1, d, e, size, sums
                        )
                        store(y, o, sums)
            if not recurrent:
                continue
            for c0 in range(0, 0 if narrow else width, group):  # outputs of earlier blocks
                for r in range(rows):
                    i = b0 + r
                    c1 = min(c0 + group, widths[i - known])
                    if c1 > inside[r]:
                        for e in range(0, d, lanes):
                            o = np.uint64((x_at + i) * d + e)
                            sums = add(weight_b, r, pitch, y, x_at, offsets, table, starts, known, i, max(c0,
                                       inside[r]), c1, d, e, size, load(y, o, size))  # fmt: skip
                            store(y, o, sums)
            for r in range(rows):  # and of this one, in order
                i = b0 + r
                for e in range(0, d, lanes):
                    o = np.uint64((x_at + i) * d + e)
                    sums = add(weight_b, r, pitch, y, x_at, offsets, table, starts, known, i, zero, inside[r], d, e,
                               size, load(y, o, size))  # fmt: skip
                    store(y, o, sums)
