"""`solve` on explicit coefficients, compiled by Numba: forward and adjoint in one sweep each.

Arrays and rows as in `forward.py`. Coefficients beyond a row's sources are never read.
"""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit
from resolvent.kernels.forward import locate

_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}  # no assumption about NaN or infinity


@cached_njit(nogil=True, error_model="numpy", fastmath=_FAST, _nrt=False)
def forward(x, alpha, beta, y, offsets, table, starts, widths, cuts, known, d, wa, wb, direct, recurrent, first, last):
    """y_i = Σ alpha_ij x_j + Σ beta_ij y_j; `wa` and `wb` are the columns of alpha and beta."""
    zero, length = np.uint64(0), np.uint64(d)
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for i in range(known, end):
            o = np.uint64((x_at + i) * d)
            a = alpha[(q_at + i) * wa]
            for e in range(zero, length):
                y[o + e] = a * x[o + e]
            for c in range(widths[i - known] - 1, -1, -1):  # farthest first, so that the newest output is needed last
                j = i - offsets[c] if len(offsets) else table[np.uint64(starts[i - known] + c)]
                p = np.uint64((x_at + j) * d)
                if direct:
                    a = alpha[(q_at + i) * wa + 1 + c]
                    for e in range(zero, length):
                        y[o + e] += a * x[p + e]
                if recurrent:
                    b = beta[(q_at + i) * wb + c]
                    for e in range(zero, length):
                        y[o + e] += b * y[p + e]


# dU = (I - B)^-T dY, read from the end; dalpha_ij = <dU_i, x_j>, dbeta_ij = <dU_i, y_j>, dX = A^T dU.
@cached_njit(nogil=True, error_model="numpy", fastmath=_FAST, _nrt=False)
def backward(
    x, alpha, beta, y, du, dx, dalpha, dbeta,
    offsets, table, starts, widths, cuts, known, d, wa, wb, direct, recurrent, first, last,
):  # fmt: skip
    """`du` holds dY on entry and dU on return; the other gradients start at zero."""
    zero, length = np.uint64(0), np.uint64(d)
    for job in range(first, last):
        x_at, q_at, end = locate(job, cuts, known)
        for i in range(end - 1, known - 1, -1):
            o = np.uint64((x_at + i) * d)
            a, t = alpha[(q_at + i) * wa], x.dtype.type(0)
            for e in range(zero, length):
                t += du[o + e] * x[o + e]
            for e in range(zero, length):
                dx[o + e] += a * du[o + e]
            dalpha[(q_at + i) * wa] = t
            for c in range(widths[i - known]):
                j = i - offsets[c] if len(offsets) else table[np.uint64(starts[i - known] + c)]
                p = np.uint64((x_at + j) * d)
                if direct:
                    a, t = alpha[(q_at + i) * wa + 1 + c], x.dtype.type(0)
                    for e in range(zero, length):
                        t += du[o + e] * x[p + e]
                    for e in range(zero, length):
                        dx[p + e] += a * du[o + e]
                    dalpha[(q_at + i) * wa + 1 + c] = t
                if recurrent:
                    b, u = beta[(q_at + i) * wb + c], x.dtype.type(0)
                    for e in range(zero, length):
                        u += du[o + e] * y[p + e]
                    for e in range(zero, length):
                        du[p + e] += b * du[o + e]
                    dbeta[(q_at + i) * wb + c] = u
