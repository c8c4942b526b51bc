"""The fused forward sweep over one sequence of one head: scores on the pattern, softmax, gate, A x and the recurrence.

A sequence is swept in blocks of rows. What does not depend on the block's own outputs is done for a group of sources
of all rows at a time, one array after another, so that the windows of neighbouring strides meet in the cache and rows
a power of two apart do not evict each other; only reads of the block's own outputs go row by row. Sums stay in
registers (`vectors.py`). Nothing of size n × W is kept.

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
    dot,
    exp_less,
    fma,
    highest,
    load,
    prefetch,
    splat,
    store,
    times,
    total,
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
def score(
    left, left_at, right, right_at, factor, offsets, table, starts, widths, known, b0, rows, width, group, d, size,
    beyond, out, pitch, ahead,
):  # fmt: skip
    """out[r, c] = factor · <left_i, right_j> over the sources of the rows i = b0 + r, and `beyond` after them.

    A group of sources at a time, and the rows `ahead` of these are asked for, which come next.
    """
    clear(out, rows * pitch, beyond)
    for c0 in range(0, width, group):
        for r in range(rows):
            i = b0 + r
            for e in range(0, d, len(size) * UNIT):
                row = times(factor, load(left, np.uint64((left_at + i) * d + e), size))
                if c0 == 0:
                    prefetch(left, np.uint64((left_at + i + ahead) * d + e), size)
                    prefetch(right, np.uint64((right_at + i + ahead) * d + e), size)
                for c in range(c0, min(c0 + group, widths[i - known])):
                    j = i - offsets[c] if len(offsets) else table[np.uint64(starts[i - known] + c)]
                    s = dot(row, load(right, np.uint64((right_at + j) * d + e), size))
                    out[np.uint64(r * pitch + c)] = s if e == 0 else out[np.uint64(r * pitch + c)] + s


@njit(error_model="numpy", _nrt=False, forceinline=True)
def score_self(left, left_at, right, right_at, factor, widths, known, b0, rows, d, size, out, pitch):
    """out[r, last] = factor · <left_i, right_i>, in the column after the row's sources."""
    for r in range(rows):
        i = b0 + r
        s = out.dtype.type(0)
        for e in range(0, d, len(size) * UNIT):
            row = load(left, np.uint64((left_at + i) * d + e), size)
            s += dot(row, load(right, np.uint64((right_at + i) * d + e), size))
        out[np.uint64(r * pitch + widths[i - known])] = factor * s


@njit(error_model="numpy", _nrt=False, forceinline=True)
def add(weights, at, values, values_at, offsets, table, starts, known, i, c0, c1, d, e, size, start):
    """`start` + Σ weights[at + c] · values_j over the sources c0 ≤ c < c1 of row i, farthest first, from element e."""
    for c in range(c1 - 1, c0 - 1, -1):
        j = i - offsets[c] if len(offsets) else table[np.uint64(starts[i - known] + c)]
        start = fma(weights[np.uint64(at + c)], load(values, np.uint64((values_at + j) * d + e), size), start)
    return start


@njit(error_model="numpy", _nrt=False, forceinline=True)
def copy_row(source, source_at, target, target_at, d, size):
    for e in range(0, d, len(size) * UNIT):
        store(target, np.uint64(target_at * d + e), load(source, np.uint64(source_at * d + e), size))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def clear(array, count, value):
    for c in range(0, count, UNIT):
        store(array, np.uint64(c), splat(array.dtype.type(value), (0,)))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def softmax(weights, at, count, scale, stats, row):
    """weights[at : at + count] become scale · softmax; `stats[row]` and the next keep what it took."""
    unit = (0,)
    one = weights.dtype.type(1)
    if count <= UNIT:  # one vector, which stays in a register
        scores = load(weights, np.uint64(at), unit)
        top = highest(scores)
        scores = exp_less(scores, top)
        factor = one / total(scores)
        store(weights, np.uint64(at), times(scale * factor, scores))
    else:
        top = weights.dtype.type(LOWEST)
        for c in range(0, count, UNIT):
            top = max(top, highest(load(weights, np.uint64(at + c), unit)))
        sums = splat(weights.dtype.type(0), unit)
        for c in range(0, count, UNIT):
            scores = exp_less(load(weights, np.uint64(at + c), unit), top)
            sums = fma(one, scores, sums)
            store(weights, np.uint64(at + c), scores)
        factor = one / total(sums)
        for c in range(0, count, UNIT):
            store(weights, np.uint64(at + c), times(scale * factor, load(weights, np.uint64(at + c), unit)))
    stats[np.uint64(row)] = top
    stats[np.uint64(row + 1)] = factor


@njit(error_model="numpy", _nrt=False, forceinline=True)
def count_inside(offsets, table, starts, widths, known, b0, i):
    """How many sources of row i lie in the block from b0: sources come nearest first, so those come first."""
    k, count = 0, widths[i - known]
    while k < count and (i - offsets[k] >= b0 if len(offsets) else table[np.uint64(starts[i - known] + k)] >= b0):
        k += 1
    return k


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def forward(
    x, qa, ka, qb, kb, gate, y, stats,
    offsets, table, starts, widths, cuts, known, most, d, dk, size, size_k, scale, direct, recurrent, block, group,
    weight_a, weight_b, keep, inside, first, last,
):  # fmt: skip
    """Jobs first … last - 1, a job being a sequence of a head. `most` is the largest of `widths`."""
    lanes = len(size) * UNIT
    one, nil = stats.dtype.type(1), stats.dtype.type(0)
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for b0 in range(known, end, block):
            rows = min(block, end - b0)
            width = 0
            for r in range(rows):
                width = max(width, widths[b0 + r - known])
            pitch = (width + UNIT) // UNIT * UNIT
            narrow = width <= UNIT
            if recurrent and most > 1:
                score(qb, q_at, kb, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, LOWEST, weight_b, pitch, rows)  # fmt: skip
            if direct:
                score(qa, q_at, ka, x_at, scale, offsets, table, starts, widths, known, b0, rows, width, group, dk,
                      size_k, LOWEST, weight_a, pitch, rows)  # fmt: skip
                score_self(qa, q_at, ka, x_at, scale, widths, known, b0, rows, dk, size_k, weight_a, pitch)
            for r in range(rows):
                i = b0 + r
                count = widths[i - known]
                g = gate[q_at + i] if recurrent and count > 0 else nil
                keep[r] = one - g
                if direct:
                    softmax(weight_a, r * pitch, count + 1, keep[r], stats, STATS * (q_at + i))
                if recurrent and count > 0:
                    if most > 1:
                        softmax(weight_b, r * pitch, count, g, stats, STATS * (q_at + i) + 2)
                    else:  # over one source it is 1, whatever the score
                        weight_b[r * pitch] = g
                inside[r] = count if narrow else count_inside(offsets, table, starts, widths, known, b0, i)
            for c0 in range(0, max(width, 1) if direct else 1, group):  # A x
                for r in range(rows):
                    i = b0 + r
                    count = widths[i - known] if direct else 0
                    for e in range(0, d, lanes):
                        o = np.uint64((x_at + i) * d + e)
                        if c0 == 0:
                            w = weight_a[np.uint64(r * pitch + count)] if direct else keep[r]
                            sums = times(w, load(x, o, size))
                            prefetch(x, o + np.uint64(rows * d), size)
                            prefetch(y, o + np.uint64(rows * d), size)
                        else:
                            sums = load(y, o, size)
                        c1 = min(c0 + group, count)
                        sums = add(
                            weight_a, r * pitch, x, x_at, offsets, table, starts, known, i, c0, c1, d, e, size, sums
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
                            sums = add(weight_b, r * pitch, y, x_at, offsets, table, starts, known, i, max(c0,
                                       inside[r]), c1, d, e, size, load(y, o, size))  # fmt: skip
                            store(y, o, sums)
            for r in range(rows):  # and of this one, in order
                i = b0 + r
                for e in range(0, d, lanes):
                    o = np.uint64((x_at + i) * d + e)
                    sums = add(weight_b, r * pitch, y, x_at, offsets, table, starts, known, i, 0, inside[r], d, e, size,
                               load(y, o, size))  # fmt: skip
                    store(y, o, sums)
