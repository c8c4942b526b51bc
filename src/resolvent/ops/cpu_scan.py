"""First-order recurrences per channel, compiled by Numba: time outermost, channels innermost and contiguous.

Arrays are flat, of `n` rows of `c` channels per sequence; a job is a sequence and one of `blocks` blocks of channels.
A decay of exactly zero cuts, also what is infinite or NaN. (All is loaded before it is chosen, or LLVM would branch.)
"""

from __future__ import annotations

import numpy as np
from numba import njit

_FAST = {"contract", "nsz"}  # products and sums may fuse; no assumption about NaN or infinity


@njit(nogil=True, cache=True, inline="always")
def _place(job, blocks, n, c, unit):
    """First element of a job's sequence, its first channel and how many it has; edges of blocks are whole units."""
    units, part = -(-c // unit), job % blocks
    low, high = units * part // blocks * unit, min(units * (part + 1) // blocks * unit, c)
    return job // blocks * n * c, low, np.uint64(max(high - low, 0))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def forward(decay, x, initial, y, n, c, unit, blocks, first, last):
    """y_t = decay_t y_{t-1} + x_t; `initial` is empty or what stands before the first."""
    zero = np.uint64(0)
    for job in range(first, last):
        at, low, length = _place(job, blocks, n, c, unit)
        o = np.uint64(at + low)
        if len(initial):
            s = np.uint64(job // blocks * c + low)
            for e in range(zero, length):
                a, b, v = decay[o + e], x[o + e], initial[s + e]
                y[o + e] = b if a == 0 else a * v + b
        else:
            for e in range(zero, length):
                y[o + e] = x[o + e]
        for t in range(1, n):
            o, p = np.uint64(at + t * c + low), np.uint64(at + (t - 1) * c + low)
            for e in range(zero, length):
                a, b, v = decay[o + e], x[o + e], y[p + e]
                y[o + e] = b if a == 0 else a * v + b


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def transposed(decay, x, y, n, c, unit, blocks, first, last):
    """y_t = x_t + decay_{t+1} y_{t+1}, read from the end."""
    zero = np.uint64(0)
    for job in range(first, last):
        at, low, length = _place(job, blocks, n, c, unit)
        o = np.uint64(at + (n - 1) * c + low)
        for e in range(zero, length):
            y[o + e] = x[o + e]
        for t in range(n - 2, -1, -1):
            o, p = np.uint64(at + t * c + low), np.uint64(at + (t + 1) * c + low)
            for e in range(zero, length):
                a, b, v = decay[p + e], x[o + e], y[p + e]
                y[o + e] = b if a == 0 else a * v + b


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def backward(decay, y, initial, dy, du, ddecay, n, c, unit, blocks, first, last):
    """du = `transposed` of dy, and ddecay_t = du_t y_{t-1} in the same sweep."""
    zero = np.uint64(0)
    for job in range(first, last):
        at, low, length = _place(job, blocks, n, c, unit)
        o = np.uint64(at + (n - 1) * c + low)
        for e in range(zero, length):
            du[o + e] = dy[o + e]
        for t in range(n - 2, -1, -1):
            o, p = np.uint64(at + t * c + low), np.uint64(at + (t + 1) * c + low)
            for e in range(zero, length):
                a, b, u = decay[p + e], dy[o + e], du[p + e]
                ddecay[p + e] = u * y[o + e]
                du[o + e] = b if a == 0 else a * u + b
        o, s = np.uint64(at + low), np.uint64(job // blocks * c + low)
        for e in range(zero, length):
            ddecay[o + e] = du[o + e] * initial[s + e] if len(initial) else 0
