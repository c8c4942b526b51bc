"""Lower bounds on congestion, for any pattern, each with its proof.

The path length: n paths visit many nodes, and there are 2n. The cut: every path crosses it through a position that is
still read. Intervals refine the cut: what starts in one leaves it through positions of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from resolvent.analysis.hops import (
    as_intervals,
    hops_by_distance,
    last_reachable,
    pair_reach,
    reads_at_fixed_distances,
)
from resolvent.analysis.steps import MOST_POSITIONS, hops_apart
from resolvent.errors import PatternError
from resolvent.patterns import Pattern, PatternLike, Stage, as_pattern
from resolvent.patterns.checks import require_length
from resolvent.patterns.strides import Integers

NEARBY = 8  # lengths on either side that are nearby
_MOST_HELD = 200_000_000  # positions held, over all tokens, up to which all intervals are tried


def lower_bound(pattern: Pattern, n: int, *, intervals: bool = True) -> tuple[int | float, str]:
    """The best proven lower bound and its argument; infinite if a token has no path. Intervals take the most time."""
    ((connected, visits),) = _path_lengths(pattern, range(n, n + 1))
    if not connected:
        why = "no path from some i to i + n" if pattern.recurrent else "no feedback and no edge from i to i + n"
        return math.inf, why
    bounds = [(1, "one path per token"), (path_length_bound(visits, n), "path length")]
    if pattern.recurrent:
        bounds.append((cut_bound(pattern, n), "cut"))
        bounds.append(((intervals and interval_bound(pattern, n)) or 1, "interval"))
    return max(bounds, key=lambda bound: bound[0])


def require_copy(pattern: Pattern, n: int) -> None:
    """Copying n tokens takes 2n positions; a table may end before."""
    if pattern.limit is not None and 2 * n > pattern.limit:
        raise PatternError(
            f"{pattern} is defined for {pattern.limit:,} tokens, and copying n of them takes 2n positions: expected "
            f"n ≤ {pattern.limit // 2:,}, got {n:,}."
        )


def worst_nearby(pattern: PatternLike, n: int | str, radius: int = NEARBY) -> int | float:
    """The largest lower bound over the lengths within `radius` of n.

    A single length can flatter a pattern: 2^k copies 1,024 tokens in one hop each, and 1,023 in ten. Cuts and intervals
    are tried at n and at the longest of the lengths.
    """
    pattern, n = as_pattern(pattern), require_length(n)
    require_copy(pattern, n)
    longest = n + radius if pattern.limit is None else min(n + radius, pattern.limit // 2)
    lengths = range(max(n - radius, 1), longest + 1)
    known = list(_path_lengths(pattern, lengths))
    if not all(connected for connected, _ in known):
        return math.inf
    bounds = [path_length_bound(visits, length) for length, (_, visits) in zip(lengths, known, strict=True)]
    for length in {n, longest} if pattern.recurrent else set():
        bounds += [cut_bound(pattern, length), interval_bound(pattern, length) or 1]
    return max(bounds)


def _path_lengths(pattern: Pattern, lengths: range) -> Iterator[tuple[bool, int]]:
    """For each length n whether every p has a path to p + n, and how many nodes the n shortest paths visit."""
    longest = lengths[-1]
    if (stage := as_intervals(pattern)) is not None:  # whose hops are many and small: the cut is the better bound
        end = last_reachable(stage, 2 * longest)
        for n in lengths:
            yield bool(np.all(end[:n] >= np.arange(n) + n)), 2 * n
    elif reads_at_fixed_distances(pattern, longest + 1):
        by_distance = hops_by_distance(pattern, longest + 1)
        for n in lengths:
            yield bool(by_distance[n] > 0), n * (int(by_distance[n]) + 1)
    elif 2 * longest > MOST_POSITIONS and all(stage.contiguous_columns for stage in pattern.stages):
        end = pair_reach(pattern, 2 * longest)[2]
        for n in lengths:
            yield bool(np.all(end[:n] >= np.arange(n) + n)), 2 * n
    else:
        for hops in hops_apart(pattern, lengths).values():
            yield bool(np.all(hops > 0)), int((hops + 1).sum())


def path_length_bound(visits: int, n: int) -> int:
    """The bound from n paths that visit this many nodes at least, counted with multiplicity, out of 2n.

    Node v lies on v + 1 of the paths at most, and on 2n - v: those that start before it and end after it. So C allows
    Σ min(C, v + 1, 2n - v) = C (2n + 1 - C) visits. If each path has d ≥ 2 edges, C ≥ ⌊(d + 1) / 2⌋ + 1.
    """
    too_few, enough = 0, n  # all paths at once visit n (n + 1) nodes at most
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if middle * (2 * n + 1 - middle) < visits:
            too_few = middle
        else:
            enough = middle
    return enough


def cut_bound(pattern: Pattern, n: int) -> int:
    """The bound cache × congestion ≥ n, at the best cut: `interval_bound` with the longest interval at each."""
    if (farthest := _farthest(pattern, n)) and (load := -(-n // farthest)) >= farthest:
        return load  # of the cut in the middle; the last ones, where fewer are held, are crossed by fewer than that
    from resolvent.analysis import reach_kernels

    return int(reach_kernels.cut_bound(*_last_readers(pattern, n), n, *np.zeros((2, 2 * n + 1), dtype=np.int64)))


def interval_bound(pattern: Pattern, n: int) -> int | None:
    """The best bound from what leaves an interval of positions; None if there are too many. All paths must exist.

    Take the positions from a to s - 1. A path that starts there visits none before a, so if it ends at s or later, it
    crosses from s - 1 to s by one edge, from some j ≥ a to some i ≥ s. If that is an edge of B, then j is *live*: B
    reads it at s or later. At most C paths visit j; and if j ≥ n, one of them, path j - n, ends there and does not
    cross. If it is an edge of A that B lacks, it is the first of its path: the path starts at j, and no other crosses
    so from j. A position that is live in B lets C or C - 1 paths cross, one that is live in A alone lets one. Hence

        #{p in the interval: s - n ≤ p < n} + #{j live in B: j ≥ n} - #{j live in A alone: s - n ≤ j < n}
            ≤ C · #{j live in B}    over the j of the interval; those before s - n help no path that crosses.

    The interval from 0 (or s - n) is the cut. Shorter ones tell that a position held for long carries few paths.
    """
    if len(pattern.stages) == 1 and as_intervals(pattern) is not None and pattern.stages[0].is_shifted(2 * n):
        return cut_bound(pattern, n)  # a window: of a shorter interval all is live, of a longer one what the cut has
    last, last_of_a = _last_readers(pattern, n)
    held = np.maximum(last, last_of_a) - np.arange(2 * n)
    if int(held.sum()) > _MOST_HELD:
        return None
    from resolvent.analysis import kernels

    return int(kernels.interval_bound(last, last_of_a, n, np.empty(2 * n, dtype=np.int64)))


def _farthest(pattern: Pattern, n: int) -> int:
    """How far back B reads, up to n, if it is at fixed distances and A reads no farther; otherwise 0."""
    if not all(stage.is_shifted(2 * n) for stage in pattern.stages):
        return 0
    if len(pattern.stages) > 1 and not all(stage.contiguous_columns for stage in pattern.stages):
        return 0
    ends = [int(stage.offsets(n + 1).max(initial=0)) for stage in pattern.stages]
    return ends[-1] if ends[-1] == max(ends) else 0


def _last_readers(pattern: Pattern, n: int) -> tuple[Integers, Integers]:
    """Of B, and of A (the same where there is one stage)."""
    of_b = last_readers(pattern.stages[-1], n)
    return of_b, of_b if len(pattern.stages) == 1 else last_readers(pattern.stages[0], n)


def last_readers(stage: Stage, n: int) -> Integers:
    """The last token that reads each of 2n positions for a path of length n; the position itself if none does.

    Paths through position j end at j + n or before, so later readers are of no use to them.
    """
    last: Integers = np.arange(2 * n)
    if stage.contiguous_columns:
        last += np.minimum(stage.lives(2 * n), n)
        np.minimum(last, 2 * n - 1, out=last)
    elif stage.is_shifted(2 * n):
        longest = _longest_within(stage.offsets(n + 1), n)
        last[:n] += longest[n]
        last[n:] += longest[n - 1 :: -1]  # up to the last position
    else:
        for i in range(2 * n):
            sources = stage.sources(i)
            last[sources[sources >= i - n]] = i
    return last


def _longest_within(distances: Integers, n: int) -> Integers:
    """For each m ≤ n, the longest of the distances ≤ n that is at most m; 0 if there is none. Shape (n + 1,)."""
    ends = np.concatenate([[0], distances, [n + 1]])
    longest: Integers = np.repeat(ends[:-1], np.diff(ends))
    return longest
