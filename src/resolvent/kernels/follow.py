"""Where rows read the one before them, and nothing else: one pass each way, with the row before in registers.

Called as the other sweeps are (`forward.py`, `shifted.py`), of whose arguments they need few.
"""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit
from resolvent.kernels.forward import locate
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import dot, fma, less, load, splat, store, times


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def forward(
    x, qa, ka, qb, kb, gate, y, stats,
    offsets, table, starts, widths, cuts, known, most, d, dk, size, size_k, scale, direct, recurrent, block, group,
    weight_a, weight_b, keep, feed, top, factor, inside, first, last,
):  # fmt: skip
    """y_i = (1 - g_i) x_i + g_i y_{i-1}"""
    one = gate.dtype.type(1)
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        if end == 0:  # an empty sequence has no first row to start from
            continue
        for e in range(0, d, len(size) * UNIT):
            o = np.uint64((x_at + max(known - 1, 0)) * d + e)
            if known == 0:
                store(y, o, load(x, o, size))
            sums = load(y, o, size)
            for i in range(max(known, 1), end):
                o += np.uint64(d)
                g = gate[np.uint64(q_at + i)]
                sums = fma(g, sums, times(one - g, load(x, o, size)))
                store(y, o, sums)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def backward(
    x, qa, ka, qb, kb, gate, y, stats,
    dy, dx, dqa, dka, dqb, dkb, dgate, dy_known,
    offsets, table, starts, widths, within, last_reader, cuts, known, most, d, dk, size, size_pair, size_k, scale,
    direct, recurrent, block, group, weight_a, weight_b, slope_a, slope_b, keep, feed, top, factor, own, column, du,
    kept_a, kept_b, kept_slope_a, kept_slope_b, first, last,
):  # fmt: skip
    """From the end: dU_i = dY_i + g_{i+1} dU_{i+1},   dX_i = (1 - g_i) dU_i,   dg_i = <dU_i, y_{i-1} - x_i>"""
    one, nil = gate.dtype.type(1), gate.dtype.type(0)
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
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
                store(dy_known, np.uint64((job * known + row) * d + e), sums)
                g = nil
