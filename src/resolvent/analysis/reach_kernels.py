"""Compiled loops over positions that are read by contiguous runs of later ones. Imported lazily, as `kernels`.

They are compiled when a command is first used, so arrays are passed in: code that makes them takes as long to compile
as a loop.
"""

from __future__ import annotations

import numpy as np

from resolvent.disk_cache import cached_njit
from resolvent.patterns.strides import Integers


def farthest_within(values: Integers, end: Integers) -> Integers:
    """For each j the position among j, …, end[j] with the largest value; of equal ones, the first."""
    best, records = np.empty((2, len(values)), dtype=np.int64)
    find_farthest(values, end, best, records)
    return best


@cached_njit()
def find_farthest(values, end, best, records):
    """`farthest_within`; `records` are positions ≥ j with ever larger values, the nearest on top."""
    size = 0
    for j in range(len(values) - 1, -1, -1):
        while size and values[records[size - 1]] <= values[j]:
            size -= 1
        records[size] = j
        size += 1
        low, high = 0, size - 1  # the farthest record up to end[j]
        while low < high:
            middle = (low + high) // 2
            if records[middle] <= end[j]:
                high = middle
            else:
                low = middle + 1
        best[j] = records[low]


@cached_njit()
def persistent_load(last, n, numerator, denominator, surplus, dropped, held):
    """The largest ⌈(numerator · tokens / denominator + surplus) / positions⌉ over all intervals before any cut.

    Tokens are those that start in the interval, below n; positions are those of the interval that are read at the cut
    or later. 2n positions in all; `last[j]` is the last reader of j. -1 if tokens have no such position. `dropped` are
    zeros, 2n + 1 of them: how many are read no more before each cut, of those `held` at the one before.
    """
    for j in range(2 * n):
        dropped[last[j] + 1] += 1
    size, best = 0, 1
    for cut in range(1, 2 * n):
        held[size] = cut - 1
        before, size = size + 1, size + 1 - dropped[cut]
        stop, begin, kept = cut if cut < n else n, 0, 0
        for index in range(before):
            j = held[index]
            if last[j] >= cut:
                held[kept] = j
                if begin < stop:
                    tokens, positions = numerator * (stop - begin) + surplus * denominator, denominator * (size - kept)
                    if tokens > best * positions:  # a product for each interval, a quotient only where it is larger
                        best = -(-tokens // positions)
                begin = j + 1
                kept += 1
        if size == 0 or (cut <= n and held[size - 1] < cut - 1):
            return -1
    return best


@cached_njit()
def cut_bound(last, last_of_a, n, live, crossing):
    """The largest quotient of `lower_bounds.cut_bound` over all cuts of 2n positions.

    `live` and `crossing` are zeros, 2n + 1 of them: of each cut, less those of the cut before.
    """
    for j in range(2 * n):
        live[j + 1] += 1
        live[last[j] + 1] -= 1
        if j >= n:
            crossing[j + 1] += 1
            crossing[last[j] + 1] -= 1
        elif last_of_a[j] > last[j]:
            crossing[last[j] + 1] -= 1
            crossing[last_of_a[j] + 1] += 1
    best, held, more = 1, 0, 0
    for cut in range(1, 2 * n):
        held += live[cut]
        more += crossing[cut]
        tokens = (cut if cut < n else 2 * n - cut) + more
        if held > 0 and tokens > best * held:
            best = -(-tokens // held)
    return best
