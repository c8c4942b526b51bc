"""One token after another out of a cache, compiled by Numba. Arrays are flat; see `vectors.py` and `forward.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from resolvent.disk_cache import cached_njit
from resolvent.kernels.forward import LOWEST, clear
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import dot, exp_less, fma, highest, load, prefetch, splat, store, times, total

# Rows lie anywhere in a long cache. So each pass over the sources asks for the rows of the next one: values while it
# scores A's keys, then B's keys, then outputs, then A's keys of the next head. (To ask for nothing is harmless.)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _score(q, at, keys, base, reads, c0, c1, factor, d, size, weights, following, ahead, following_d, following_size):
    for e in range(0, d, len(size) * UNIT):
        row = times(factor, load(q, np.uint64(at + e), size))
        for c in range(c0, c1):
            j = base + reads[np.uint64(c)]
            if e == 0:
                _ask(following, j + ahead, following_d, following_size)
            s = dot(row, load(keys, np.uint64(j * d + e), size))
            weights[np.uint64(c - c0)] = s if e == 0 else weights[np.uint64(c - c0)] + s


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _ask(array, j, d, size):
    for e in range(0, d, len(size) * UNIT):
        prefetch(array, np.uint64(j * d + e), size)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _add(
    weights, values, base, reads, c0, c1, d, e, size, following, following_base, following_d, following_size, sums
):
    """`sums` + Σ weights · values over the slots that are read, from element e."""
    for c in range(c0, c1):
        j = reads[np.uint64(c)]
        if e == 0:
            _ask(following, following_base + j, following_d, following_size)
        row = load(values, np.uint64((base + j) * d + e), size)
        sums = fma(weights[np.uint64(c - c0)], row, sums)
    return sums


@njit(error_model="numpy", _nrt=False, forceinline=True)
def copy_elements(source, at, target, to, d, size):
    for e in range(0, d, len(size) * UNIT):
        store(target, np.uint64(to + e), load(source, np.uint64(at + e), size))


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _softmax(weights, at, count, scale, stats, row):
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


# forceinline would copy this into every caller; one call per head costs nothing.
@njit(error_model="numpy", _nrt=False)
def mix_head(
    x, x_at, qa, qa_at, ka, ka_at, qb, qb_at, g, values, keys_a, outputs, keys_b, base, own, following, y, y_at,
    reads, c0, c1, d, dk, size, size_k, scale, direct, recurrent, scored, weights, stats,
):  # fmt: skip
    """The output of one head, which reads the slots reads[c0 … c1 - 1]; `x_at` and so on are where its rows begin.

    `base` is the first slot of its values and keys, `own` that of its outputs, `following` that of the keys to come.
    """
    one, nil = x.dtype.type(1), x.dtype.type(0)
    count = c1 - c0
    g = g if recurrent and count > 0 else nil
    weight = one - g
    if direct:
        clear(weights, 0, count + UNIT, LOWEST)
        _score(qa, qa_at, keys_a, base, reads, c0, c1, scale, dk, size_k, weights, values, 0, d, size)
        s = nil
        for e in range(0, dk, len(size_k) * UNIT):
            s += dot(load(qa, np.uint64(qa_at + e), size_k), load(ka, np.uint64(ka_at + e), size_k))
        weights[np.uint64(count)] = scale * s
        _softmax(weights, 0, count + 1, one - g, stats, 0)
        weight = weights[np.uint64(count)]
    for e in range(0, d, len(size) * UNIT):
        sums = times(weight, load(x, np.uint64(x_at + e), size))
        if direct:
            sums = _add(weights, values, base, reads, c0, c1, d, e, size, keys_b, base, dk, size_k, sums)
        store(y, np.uint64(y_at + e), sums)
    if recurrent and count > 0:
        weights[np.uint64(0)] = g
        if scored:
            clear(weights, 0, count, LOWEST)
            _score(qb, qb_at, keys_b, base, reads, c0, c1, scale, dk, size_k, weights, outputs, own - base, d, size)
            _softmax(weights, 0, count, g, stats, 0)
        for e in range(0, d, len(size) * UNIT):
            sums = load(y, np.uint64(y_at + e), size)
            sums = _add(weights, outputs, own, reads, c0, c1, d, e, size, keys_a, following, dk, size_k, sums)
            store(y, np.uint64(y_at + e), sums)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def keep_rows(x, x_at, ka, ka_at, kb, kb_at, values, keys_a, keys_b, to, d, dk, size, size_k, direct, scored):
    """The value and the keys of a token into slot `to`."""
    if direct:
        copy_elements(x, x_at, values, to * d, d, size)
        copy_elements(ka, ka_at, keys_a, to * dk, dk, size_k)
    if scored:
        copy_elements(kb, kb_at, keys_b, to * dk, dk, size_k)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def decode(
    x, qa, ka, qb, kb, gate, values, keys_a, outputs, keys_b, y,
    reads, begins, writes, heads, slots, share, d, dk, size, size_k, scale, direct, recurrent, scored, weights, stats,
    first, last,
):  # fmt: skip
    """One token of the heads first … last - 1 of all sequences, each of which has `heads`; then it goes into its slot.

    Of x, ka, kb, values and keys there is one head for every `share` heads. If they share, `keep` writes these.
    """
    for head in range(first, last):
        sequence = head // heads if len(writes) > 1 else 0
        write, group = writes[np.uint64(sequence)], head // share
        base, own = group * slots, head * slots
        mix_head(x, group * d, qa, head * dk, ka, group * dk, qb, head * dk, gate[np.uint64(head)],
                 values, keys_a, outputs, keys_b, base, own, (head + 1) // share * slots, y, head * d,
                 reads, begins[np.uint64(sequence)], begins[np.uint64(sequence + 1)],
                 d, dk, size, size_k, scale, direct, recurrent, scored, weights, stats)  # fmt: skip
        if write >= 0:
            if recurrent:
                copy_elements(y, head * d, outputs, (own + write) * d, d, size)
            if share == 1:
                keep_rows(x, group * d, ka, group * dk, kb, group * dk, values, keys_a, keys_b, base + write,
                          d, dk, size, size_k, direct, scored)  # fmt: skip


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def keep(x, ka, kb, values, keys_a, keys_b, writes, groups, slots, d, dk, size, size_k, direct, scored):
    """Rows of a token into its slot, after all heads that share them are done: it may be a slot that they read.

    `groups` is how many each sequence has.
    """
    for group in range(len(x) // d):
        write = writes[np.uint64(group // groups if len(writes) > 1 else 0)]
        if write >= 0:
            keep_rows(x, group * d, ka, group * dk, kb, group * dk, values, keys_a, keys_b, group * slots + write,
                      d, dk, size, size_k, direct, scored)  # fmt: skip
