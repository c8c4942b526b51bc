"""Shortest paths to one output: through which positions what a token holds gets there, hop by hop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.errors import PatternError
from resolvent.patterns import PatternLike, Stage, as_pattern
from resolvent.patterns.checks import require_position
from resolvent.patterns.strides import Integers

_LAST = 4095  # positions are visited one by one
_FAR = np.int64(2**40)


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
