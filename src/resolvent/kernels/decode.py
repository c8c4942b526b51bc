"""One token after another out of a cache, compiled by Numba. Arrays are flat; see `vectors.py` and `forward.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.forward import LOWEST, clear, copy_row, softmax
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import dot, fma, load, prefetch, store, times

# Rows lie anywhere in a long cache. So each pass over the sources asks for the rows of the next one: values while it
# scores A's keys, then B's keys, then outputs, then A's keys of the next head. (To ask for nothing is harmless.)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _score(q, at, keys, base, reads, count, factor, d, size, weights, following, ahead, following_d, following_size):
    for e in range(0, d, len(size) * UNIT):
        row = times(factor, load(q, np.uint64(at * d + e), size))
        for c in range(count):
            j = base + reads[np.uint64(c)]
            if e == 0:
                _ask(following, j + ahead, following_d, following_size)
            s = dot(row, load(keys, np.uint64(j * d + e), size))
            weights[np.uint64(c)] = s if e == 0 else weights[np.uint64(c)] + s


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _ask(array, j, d, size):
    for e in range(0, d, len(size) * UNIT):
        prefetch(array, np.uint64(j * d + e), size)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _keep(x, ka, kb, values, keys_a, keys_b, group, write, slots, d, dk, size, size_k, direct, scored):
    to = group * slots + write
    if direct:
        copy_row(x, group, values, to, d, size)
        copy_row(ka, group, keys_a, to, dk, size_k)
    if scored:
        copy_row(kb, group, keys_b, to, dk, size_k)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def decode(
    x, qa, ka, qb, kb, gate, values, keys_a, outputs, keys_b, y,
    reads, write, slots, share, d, dk, size, size_k, scale, direct, recurrent, scored, weights, stats, first, last,
):  # fmt: skip
    """One token of the heads first … last - 1: y, and then its rows go into slot `write` (nowhere if negative).

    Of x, ka, kb, values and keys there is one head for every `share` heads. If they share, `keep` writes these.
    """
    one, nil = x.dtype.type(1), x.dtype.type(0)
    count = len(reads)
    for head in range(first, last):
        group = head // share
        base, own = group * slots, head * slots  # of values and keys; of outputs
        g = gate[head] if recurrent and count > 0 else nil
        weight = one - g
        if direct:
            clear(weights, count + UNIT, LOWEST)
            _score(qa, head, keys_a, base, reads, count, scale, dk, size_k, weights, values, 0, d, size)
            s = nil
            for e in range(0, dk, len(size_k) * UNIT):
                key = load(ka, np.uint64(group * dk + e), size_k)
                s += dot(load(qa, np.uint64(head * dk + e), size_k), key)
            weights[np.uint64(count)] = scale * s
            softmax(weights, 0, count + 1, one - g, stats, 0)
            weight = weights[np.uint64(count)]
        for e in range(0, d, len(size) * UNIT):
            sums = times(weight, load(x, np.uint64(group * d + e), size))
            if direct:
                for c in range(count):
                    j = base + reads[np.uint64(c)]
                    if e == 0 and scored:
                        _ask(keys_b, j, dk, size_k)
                    row = load(values, np.uint64(j * d + e), size)
                    sums = fma(weights[np.uint64(c)], row, sums)
            store(y, np.uint64(head * d + e), sums)
        if recurrent and count > 0:
            weights[np.uint64(0)] = g
            if scored:
                clear(weights, count, LOWEST)
                _score(qb, head, keys_b, base, reads, count, scale, dk, size_k, weights, outputs, own - base, d, size)
                softmax(weights, 0, count, g, stats, 0)
            for e in range(0, d, len(size) * UNIT):
                p = np.uint64(head * d + e)
                sums = load(y, p, size)
                for c in range(count):
                    j = reads[np.uint64(c)]
                    if e == 0 and direct:
                        _ask(keys_a, (head + 1) // share * slots + j, dk, size_k)
                    row = load(outputs, np.uint64((own + j) * d + e), size)
                    sums = fma(weights[np.uint64(c)], row, sums)
                store(y, p, sums)
        if write >= 0:
            if recurrent:
                copy_row(y, head, outputs, own + write, d, size)
            if share == 1:
                _keep(x, ka, kb, values, keys_a, keys_b, group, write, slots, d, dk, size, size_k, direct, scored)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def keep(x, ka, kb, values, keys_a, keys_b, groups, write, slots, d, dk, size, size_k, direct, scored):
    """Rows of a token into slot `write`, after all heads that share them are done: it may be a slot that they read."""
    for group in range(groups):
        _keep(x, ka, kb, values, keys_a, keys_b, group, write, slots, d, dk, size, size_k, direct, scored)
