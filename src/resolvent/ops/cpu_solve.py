"""`solve` on explicit coefficients, one head after another, compiled by Numba: forward and adjoint in one sweep each.

Arrays are flat, with unsigned indices, as in `cpu_kernels.py`. Coefficients beyond a row's sources are never read.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}  # no assumption about NaN or infinity


@njit(inline="always")
def _source(offsets, table, i, c):
    return i - offsets[c] if len(offsets) else table[i, c]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def forward(x, alpha, beta, y, offsets, table, widths, n, d, wa, wb, direct, recurrent, first, last):
    """y_i = Σ alpha_ij x_j + Σ beta_ij y_j; `wa` and `wb` are the columns of alpha and beta."""
    zero, length = np.uint64(0), np.uint64(d)
    for head in range(first, last):
        for i in range(n):
            row = head * n + i
            o = np.uint64(row * d)
            a = alpha[row * wa]
            for e in range(zero, length):
                y[o + e] = a * x[o + e]
            for c in range(widths[i] - 1, -1, -1):  # farthest first, so that the newest output is needed last
                p = np.uint64((head * n + _source(offsets, table, i, c)) * d)
                if direct:
                    a = alpha[row * wa + 1 + c]
                    for e in range(zero, length):
                        y[o + e] += a * x[p + e]
                if recurrent:
                    b = beta[row * wb + c]
                    for e in range(zero, length):
                        y[o + e] += b * y[p + e]


# dU = (I - B)^-T dY, read from the end; dalpha_ij = <dU_i, x_j>, dbeta_ij = <dU_i, y_j>, dX = A^T dU.
@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def backward(
    x, alpha, beta, y, du, dx, dalpha, dbeta, offsets, table, widths, n, d, wa, wb, direct, recurrent, first, last
):
    """`du` holds dY on entry and dU on return; the other gradients start at zero."""
    zero, length = np.uint64(0), np.uint64(d)
    for head in range(first, last):
        for i in range(n - 1, -1, -1):
            row = head * n + i
            o = np.uint64(row * d)
            a, t = alpha[row * wa], x.dtype.type(0)
            for e in range(zero, length):
                t += du[o + e] * x[o + e]
            for e in range(zero, length):
                dx[o + e] += a * du[o + e]
            dalpha[row * wa] = t
            for c in range(widths[i]):
                p = np.uint64((head * n + _source(offsets, table, i, c)) * d)
                if direct:
                    a, t = alpha[row * wa + 1 + c], x.dtype.type(0)
                    for e in range(zero, length):
                        t += du[o + e] * x[p + e]
                    for e in range(zero, length):
                        dx[p + e] += a * du[o + e]
                    dalpha[row * wa + 1 + c] = t
                if recurrent:
                    b, u = beta[row * wb + c], x.dtype.type(0)
                    for e in range(zero, length):
                        u += du[o + e] * y[p + e]
                    for e in range(zero, length):
                        du[p + e] += b * du[o + e]
                    dbeta[row * wb + c] = u
