"""Hops: how many steps information needs from an input to a later output.

The first hop is an A edge, the rest are B edges; without B there is only the first. Translation-invariant distances
are a coin-change problem on i - j. Where each position is read by one unbroken run of later ones (cache-efficient
and banded patterns), the positions within t hops form an interval and greedy reach is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resolvent.patterns import Pattern
from resolvent.patterns.errors import PatternError, require_length
from resolvent.patterns.strides import Integers

_LARGEST_MATRIX = 4096


@dataclass(frozen=True)
class Hops:
    """Over all pairs j < i of n tokens: `max` and `mean` where a path exists, and how many pairs have none."""

    max: int
    mean: float
    unreachable_pairs: int


def hops(pattern: Pattern, n: int) -> Hops:
    """Exact, without sampling, for any pattern."""
    n = require_length(n)
    pairs = n * (n - 1) // 2
    if pattern.contiguous_columns:
        total, most, reached = _interval_totals(pattern, n)
    else:
        by_distance = hops_by_distance(pattern, n).astype(np.int64)
        weight = np.where(by_distance > 0, n - np.arange(n), 0)  # how many pairs lie this far apart
        total, most, reached = int(by_distance @ weight), int(by_distance.max(initial=0)), int(weight.sum())
    return Hops(most, total / reached if reached else 0.0, pairs - reached)


def hops_by_distance(pattern: Pattern, n: int) -> npt.NDArray[np.int32]:
    """Hops over a distance m < n in a translation-invariant pattern; 0 at m = 0, -1 where there is no path."""
    n = require_length(n)
    if pattern.period(n) != 1:
        raise PatternError(f"in {pattern} hops depend on more than the distance: ask hop_matrix or hops instead.")
    strides = pattern.offsets(n)
    if not pattern.recurrent:
        result = np.full(n, -1, dtype=np.int32)
        result[strides] = 1
        result[0] = 0
        return result
    if pattern.contiguous_columns and len(strides):
        return -(-np.arange(n, dtype=np.int32) // np.int32(strides[-1]))
    from resolvent.analysis import kernels

    result = kernels.coin_change(strides, n)
    return np.asarray(result)


def hop_matrix(pattern: Pattern, n: int) -> npt.NDArray[np.int32]:
    """(n, n) hops from input j to output i; 0 on the diagonal, -1 where there is no path. For pictures."""
    if require_length(n) > _LARGEST_MATRIX:
        raise PatternError(f"hop_matrix is n × n: expected n ≤ {_LARGEST_MATRIX:,}, got {n:,}. Ask hops(pattern, n).")
    far = np.int32(2**30)
    matrix = np.full((n, n), far, dtype=np.int32)
    for i in range(n):
        sources = pattern.sources(i)
        if len(sources) and pattern.recurrent:
            matrix[i] = matrix[sources].min(axis=0) + 1
        elif len(sources):
            matrix[i, sources] = 1
        matrix[i, i] = 0
    matrix[matrix >= far] = -1
    return matrix


def interval_reach(pattern: Pattern, n: int) -> tuple[Integers, Integers]:
    """For patterns with contiguous columns: lifetimes, and each position's best relay."""
    from resolvent.analysis import kernels

    lives = pattern.lives(n)
    return lives, kernels.best_relay(lives)


def _interval_totals(pattern: Pattern, n: int) -> tuple[int, int, int]:
    if not pattern.recurrent:
        reached = int(np.minimum(pattern.lives(n), n - 1 - np.arange(n)).sum())
        return reached, min(reached, 1), reached
    from resolvent.analysis import kernels

    lives, relay = interval_reach(pattern, n)
    total, most, end = kernels.interval_hops(lives, relay)
    return int(total.sum()), int(most.max(initial=0)), int((end - np.arange(n)).sum())
