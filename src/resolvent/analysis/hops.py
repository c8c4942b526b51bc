"""Hops: the number of steps from an input to a later output.

The first hop is an A edge, the rest are B edges; without B there is only the first. Translation-invariant distances
are a coin-change problem on i - j. If each position is read by a contiguous run of later ones (cache-efficient
and banded patterns, and pairs of these), the positions within t hops form an interval and greedy reach is exact. Of all
other patterns the reads are listed, and the hops of each row follow from those of the rows that it reads (`steps`).
`paths_to` says through which positions a shortest path leads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resolvent.analysis.steps import FAR, hop_blocks, list_steps
from resolvent.errors import PatternError
from resolvent.patterns import Pattern, PatternLike, Stage, as_pattern
from resolvent.patterns.checks import require_length, require_position
from resolvent.patterns.strides import Integers

_LARGEST_MATRIX = 4096
_LAST = 4095  # a target of paths, whose positions are visited one by one
_FAR = np.int64(2**40)


@dataclass(frozen=True)
class Hops:
    """Hops over all pairs j < i of n tokens: `max` and `mean` over the pairs with a path, and the number without."""

    max: int
    mean: float
    unreachable_pairs: int


def hops(pattern: PatternLike, n: int | str) -> Hops:
    """Compute the largest and the mean number of hops over all pairs, exactly and without sampling.

    Args:
        pattern: A pattern or its spelling.
        n: Number of tokens, as an integer or a string such as `"128k"`.

    Returns:
        Maximum and mean over the connected pairs, and the number of pairs without a path.

    >>> hops("exponential+cache", 1024).max
    10
    """
    pattern, n = as_pattern(pattern), require_length(n)
    pairs = n * (n - 1) // 2
    if (windows := _windows(pattern, n)) is not None:
        total, most, reached = _window_totals(*windows, n)
    elif (stage := as_intervals(pattern)) is not None:
        total, most, reached = _interval_totals(stage, n)
    elif reads_at_fixed_distances(pattern, n):
        by_distance = hops_by_distance(pattern, n).astype(np.int64)
        weight = np.where(by_distance > 0, n - np.arange(n), 0)  # number of pairs at this distance
        total, most, reached = int(by_distance @ weight), int(by_distance.max(initial=0)), int(weight.sum())
    elif len(pattern.stages) > 1 and all(stage.contiguous_columns for stage in pattern.stages):
        total, most, reached = _pair_totals(pattern, n)
    else:
        total, most, reached = _listed_totals(pattern, n)
    return Hops(most, total / reached if reached else 0.0, pairs - reached)


def as_intervals(pattern: Pattern) -> Stage | None:
    """The pattern if each position is read by a contiguous run of later ones, in A and B alike."""
    return pattern if isinstance(pattern, Stage) and pattern.contiguous_columns else None


def reads_at_fixed_distances(pattern: Pattern, n: int) -> bool:
    """Whether the first n tokens all read at the same distances: in A, and in B."""
    return all(stage.is_shifted(n) for stage in pattern.stages)


def hops_by_distance(pattern: PatternLike, n: int | str) -> npt.NDArray[np.int32]:
    """Hops over each distance m < n in a translation-invariant pattern, shape (n,); -1 where there is no path."""
    pattern, n = as_pattern(pattern), require_length(n)
    if not reads_at_fixed_distances(pattern, n):
        raise PatternError(f"in {pattern} hops depend on more than the distance: use hop_matrix or hops instead.")
    first, later = pattern.stages[0].offsets(n), pattern.stages[-1].offsets(n)
    if not pattern.recurrent:
        result = np.full(n, -1, dtype=np.int32)
        result[first] = 1
        result[0] = 0
        return result
    if (windows := _windows(pattern, n)) is not None:
        nearest, each = map(np.int32, windows)
        beyond = np.maximum(np.arange(n, dtype=np.int32) - nearest, 0)
        result = 1 - (-beyond // each)
        result[0] = 0
        return np.asarray(result)
    from resolvent.analysis import kernels

    result = np.full(n, -1, dtype=np.int32)
    kernels.coin_change(first, later, result)
    return result


def hop_matrix(pattern: PatternLike, n: int | str) -> npt.NDArray[np.int32]:
    """Hops between all pairs, for plots.

    Args:
        pattern: A pattern or its spelling.
        n: Number of tokens, at most 4,096.

    Returns:
        Shape (n, n): entry [i, j] is the number of hops from input j to output i; 0 on the diagonal, -1 if there is no
        path.

    >>> hop_matrix("order:2", 4)
    array([[ 0, -1, -1, -1],
           [ 1,  0, -1, -1],
           [ 1,  1,  0, -1],
           [ 2,  1,  1,  0]], dtype=int32)
    """
    pattern, n = as_pattern(pattern), require_length(n)
    if n > _LARGEST_MATRIX:
        raise PatternError(f"hop_matrix is n × n: expected n ≤ {_LARGEST_MATRIX:,}, got {n:,}. Use hops(pattern, n).")
    far = np.int32(2**30)
    matrix = np.full((n, n), far, dtype=np.int32)
    first, later = pattern.stages[0], pattern.stages[-1]
    for i in range(n):
        if pattern.recurrent and len(sources := later.sources(i)):
            matrix[i] = matrix[sources].min(axis=0) + 1
        if first is not later or not pattern.recurrent:
            matrix[i, first.sources(i)] = 1
        matrix[i, i] = 0
    matrix[matrix >= far] = -1
    return matrix


def last_reachable(stage: Stage, n: int) -> Integers:
    """The last of n positions that each position reaches; it reaches all before that, if columns are contiguous."""
    if not stage.recurrent:
        reached: Integers = np.minimum(np.arange(n) + stage.lives(n), n - 1)
        return reached
    return interval_hops(stage.lives(n))[2]


def interval_hops(lives: Integers) -> tuple[Integers, Integers, Integers]:
    """For each position the sum of hops, the largest, and the last one reachable; position j is read lives[j] times."""
    from resolvent.analysis import kernels, reach_kernels

    n = len(lives)
    reach = np.minimum(np.arange(n) + lives, n - 1)
    total, most, end = (np.empty(n, dtype=np.int64) for _ in range(3))
    kernels.interval_hops(reach, reach_kernels.farthest_within(reach, reach), total, most, end)
    return total, most, end


def _windows(pattern: Pattern, n: int) -> tuple[int, int] | None:
    """How far the first hop reaches, and each later one, if A and B read all of the last so many positions."""
    first, later = pattern.stages[0], pattern.stages[-1]
    if n < 2 or not later.recurrent or not all(s.contiguous_columns and s.is_shifted(n) for s in pattern.stages):
        return None
    ends = [int(stage.offsets(n).max(initial=0)) for stage in (first, later)]
    return (max(ends), ends[1]) if ends[1] else None


def _window_totals(first: int, later: int, n: int) -> tuple[int, int, int]:
    """Hops of all pairs of n tokens in windows, in Python's integers: of each h, the pairs more than h hops apart."""
    pairs = n * (n - 1) // 2
    beyond = max(n - first, 1)  # as many tokens as are more than one hop from the first, and itself
    h = (beyond - 1) // later
    once, squares = h * (h + 1) // 2, h * (h + 1) * (2 * h + 1) // 6
    total = (h + 1) * beyond * (beyond - 1) - later * (2 * beyond - 1) * once + later**2 * squares
    return pairs + total // 2, 1 - (1 - beyond) // later, pairs


def _interval_totals(stage: Stage, n: int) -> tuple[int, int, int]:
    if not stage.recurrent:
        reached = int(np.minimum(stage.lives(n), n - 1 - np.arange(n)).sum())
        return reached, min(reached, 1), reached
    total, most, end = interval_hops(stage.lives(n))
    return int(total.sum()), int(most.max(initial=0)), int((end - np.arange(n)).sum())


def pair_reach(pattern: Pattern, n: int) -> tuple[Integers, Integers, Integers]:
    """For each position of a pair of contiguous columns: the sum of hops, the largest, and the last one reachable.

    The first hop is A's or B's; from the best relay among what it reached, B leads on as it does alone.
    """
    from resolvent.analysis import reach_kernels

    a, b = (stage.lives(n) for stage in (pattern.stages[0], pattern.stages[-1]))
    positions = np.arange(n)
    total_b, most_b, end_b = interval_hops(b)
    first, later = (np.minimum(positions + lives, n - 1) for lives in (np.maximum(a, b), b))
    relay = reach_kernels.farthest_within(later, first)
    further = later[relay] > first
    end = np.where(further, end_b[relay], first)
    onward = (end - positions) + (end - first) + total_b[relay] - (end - relay)
    return np.where(further, onward, first - positions), np.where(further, most_b[relay] + 1, first > positions), end


def _pair_totals(pattern: Pattern, n: int) -> tuple[int, int, int]:
    total, most, end = pair_reach(pattern, n)
    return int(total.sum()), int(most.max(initial=0)), int((end - np.arange(n)).sum())


def _listed_totals(pattern: Pattern, n: int) -> tuple[int, int, int]:
    total = most = reached = 0
    for _, block in hop_blocks(list_steps(pattern, n), n, n):
        hops = block[(block > 0) & (block < FAR)]
        total, reached = total + int(hops.sum(dtype=np.int64)), reached + len(hops)
        most = max(most, int(hops.max(initial=0)))
    return total, most, reached


@dataclass(frozen=True, eq=False)
class Paths:
    """A shortest path from every input up to `target`, to the output there.

    Attributes:
        target: The position whose output is reached.
        hops: Hops from each input j ≤ target, shape (target + 1,); 0 at the target, -1 if there is no path.
        first: The position after input j, an edge of A if no edge of B is as short; -1 if there is none.
        later: The position after output j, always an edge of B; -1 if there is none.
    """

    target: int
    hops: Integers
    first: Integers
    later: Integers

    def path(self, j: int) -> Integers:
        """The positions on the way from input j to the target, both included; empty if there is no path.

        >>> paths_to("exponential", 20).path(1)
        array([ 1, 17, 19, 20])
        """
        if require_position(j, "j") > self.target:
            raise PatternError(f"expected an input at or before {self.target:,}, got {j:,}: nothing reads the future.")
        if self.hops[j] < 0:
            return np.empty(0, dtype=np.int64)
        nodes = [j] if j == self.target else [j, int(self.first[j])]
        while nodes[-1] != self.target:
            nodes.append(int(self.later[nodes[-1]]))
        return np.array(nodes, dtype=np.int64)


def paths_to(pattern: PatternLike, target: int) -> Paths:
    """Find a shortest path from every input to one output; of several, the one whose first step is the longest.

    The first hop is an edge of A or of B, all others are edges of B. Edges lead forward, so the hops from a position
    are known once those from all later ones are.

    Args:
        pattern: A pattern or its spelling.
        target: The position of the output, at most 4,095.

    Returns:
        The paths, as the next position after each.

    >>> int(paths_to("quadratic", 100).hops.max())
    4
    """
    pattern = as_pattern(pattern)
    if require_position(target, "target") > _LAST:
        raise PatternError(f"paths are found position by position: expected a target ≤ {_LAST:,}, got {target:,}.")
    pattern.require_within(target + 1)
    a, b = pattern.stages[0], pattern.stages[-1]
    distance, later = np.full(target + 1, _FAR), np.full(target + 1, -1)
    distance[target] = 0
    if b.recurrent:
        _step_back(b, distance, distance, later)
    hops, first = distance.copy(), later.copy()
    if a is not b or not b.recurrent:
        _step_back(a, distance, hops, first)
    return Paths(target, np.where(hops == _FAR, -1, hops), first, later)


def _step_back(stage: Stage, distance: Integers, hops: Integers, following: Integers) -> None:
    """From each position that reaches the target, farthest first, to those that it reads: one hop more, if shorter."""
    for node in range(len(distance) - 1, 0, -1):
        if distance[node] < _FAR:
            sources = stage.sources(node)
            nearer = sources[hops[sources] > distance[node] + 1]
            hops[nearer] = distance[node] + 1
            following[nearer] = node
