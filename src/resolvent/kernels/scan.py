"""First-order recurrences per channel, compiled by Numba: time outermost, channels innermost and contiguous.

Arrays are flat, of `n` rows of `c` channels per sequence; the jobs are the sequences `first` to `last`. A decay of
exactly zero cuts, also what is infinite or NaN. For LLVM to use vectors all is loaded before it is chosen, and no loop
writes two arrays.
"""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit

_FAST = {"contract", "nsz"}  # products and sums may fuse; no assumption about NaN or infinity


@cached_njit(nogil=True, error_model="numpy", fastmath=_FAST, _nrt=False)
def forward(decay, x, initial, y, n, c, first, last):
    """y_t = decay_t y_{t-1} + x_t; `initial` is empty, or what stands before the first."""
    zero, length = np.uint64(0), np.uint64(c)
    for job in range(first, last):
        o, s = np.uint64(job * n * c), np.uint64(job * c)
        if len(initial):
            for e in range(zero, length):
                a, b, v = decay[o + e], x[o + e], initial[s + e]
                y[o + e] = b if a == 0 else a * v + b
        else:
            for e in range(zero, length):
                y[o + e] = x[o + e]
        for _ in range(1, n):
            p, o = o, o + length
            for e in range(zero, length):
                a, b, v = decay[o + e], x[o + e], y[p + e]
                y[o + e] = b if a == 0 else a * v + b


@cached_njit(nogil=True, error_model="numpy", fastmath=_FAST, _nrt=False)
def backward(decay, y, initial, dy, du, ddecay, n, c, first, last):
    """du_t = dy_t + decay_{t+1} du_{t+1}, read from the end; if `ddecay` is not empty, ddecay_t = du_t y_{t-1}."""
    zero, length = np.uint64(0), np.uint64(c)
    for job in range(first, last):
        o, s = np.uint64((job + 1) * n * c - c), np.uint64(job * c)
        for e in range(zero, length):
            du[o + e] = dy[o + e]
        for _ in range(1, n):
            p, o = o, o - length
            for e in range(zero, length):
                a, b, v = decay[p + e], dy[o + e], du[p + e]
                du[o + e] = b if a == 0 else a * v + b
            if len(ddecay):
                for e in range(zero, length):
                    ddecay[p + e] = du[p + e] * y[o + e]
        if len(ddecay):
            for e in range(zero, length):
                ddecay[o + e] = du[o + e] * initial[s + e] if len(initial) else 0
