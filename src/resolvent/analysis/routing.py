"""Routings: n paths from position i to position i + n, on a sequence of 2n tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resolvent.errors import PatternError
from resolvent.patterns import PatternLike, as_pattern
from resolvent.patterns.strides import Integers


class RoutingError(ValueError):
    """A routing that does not follow the pattern."""


@dataclass(frozen=True, eq=False)
class Routing:
    """A set of n paths. Path p visits `nodes[starts[p] : starts[p + 1]]`, from p to p + n inclusive."""

    n: int
    starts: Integers
    nodes: Integers

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int] | Integers]) -> Routing:
        starts = np.cumsum([0, *map(len, paths)], dtype=np.int64)
        nodes = np.concatenate([np.asarray(path, dtype=np.int64) for path in paths])
        return cls(len(paths), starts, nodes)

    @classmethod
    def from_visits(cls, n: int, tokens: Integers, nodes: Integers) -> Routing:
        """Make a routing from (token, node) visits in order of time."""
        order = np.argsort(tokens, kind="stable")
        starts = np.searchsorted(tokens[order], np.arange(n + 1))
        return cls(n, starts, nodes[order])

    def path(self, p: int) -> Integers:
        """The nodes of path p."""
        return self.nodes[self.starts[p] : self.starts[p + 1]]

    def __repr__(self) -> str:
        return f"Routing({self.n:,} paths, at most {self.congestion:,} through one node)"

    def __iter__(self) -> Iterator[Integers]:
        return (self.path(p) for p in range(self.n))

    def loads(self) -> Integers:
        """The number of paths through each node, endpoints included, shape (2n,)."""
        return np.bincount(self.nodes, minlength=2 * self.n)

    @property
    def congestion(self) -> int:
        """The largest load of a node."""
        return int(self.loads().max())

    def draw(self) -> str:
        """Draw the paths as text, one row each, with the nodes that each token visits."""
        if self.n > 64:
            raise PatternError(f"expected n ≤ 64 to draw a routing as text, got n = {self.n}: plot its loads instead.")
        rows = []
        for p, path in enumerate(self):
            row = np.full(2 * self.n, "·")
            row[p : p + self.n] = "─"
            row[path] = "●"
            rows.append("".join(row))
        loads = self.loads()
        digits = [str(load) if load < 10 else "+" for load in loads]
        return "\n".join([*rows, "".join(digits) + f"  load per node, at most {loads.max()}"])


def verify(pattern: PatternLike, routing: Routing) -> int:
    """Check that a routing follows the pattern, and return its congestion.

    Shares no code with the routers: it checks each edge against the pattern, and counts the loads itself.

    Args:
        pattern: A pattern or its spelling.
        routing: The routing to check.

    Returns:
        The congestion: the largest number of paths through a node.

    Raises:
        RoutingError: A path has the wrong ends, or a step that the pattern does not allow.

    >>> verify("order:2", Routing.from_paths([[0, 2], [1, 3]]))
    1
    """
    pattern = as_pattern(pattern)
    n, starts, nodes = routing.n, routing.starts, routing.nodes
    if len(starts) != n + 1 or starts[0] != 0 or starts[-1] != len(nodes) or np.any(np.diff(starts) < 2):
        raise RoutingError(f"expected {n} paths of two or more nodes each.")
    first, last = nodes[starts[:-1]], nodes[starts[1:] - 1]
    for p in np.flatnonzero((first != np.arange(n)) | (last != np.arange(n) + n))[:1]:
        raise RoutingError(f"path {p} runs from {first[p]} to {last[p]}: expected from {p} to {p + n}.")
    inside = np.ones(len(nodes), dtype=np.bool_)
    inside[starts[1:] - 1] = False  # the last node of a path starts no edge
    edge = np.flatnonzero(inside)
    allowed = pattern.allows(nodes[edge + 1], nodes[edge])
    for e in edge[~allowed][:1]:
        raise RoutingError(f"{pattern} has no edge from {nodes[e]} to {nodes[e + 1]}, which a path uses.")
    if len(pattern.stages) > 1:
        later = edge[~np.isin(edge, starts)]
        allowed = pattern.stages[-1].allows(nodes[later + 1], nodes[later])
        for e in later[~allowed][:1]:
            raise RoutingError(
                f"B of {pattern} has no edge from {nodes[e]} to {nodes[e + 1]}, which a path uses after its first step."
            )
    if not pattern.recurrent and np.any(np.diff(starts) != 2):
        raise RoutingError(f"{pattern} has no feedback, so a path is one edge; some paths are longer.")
    _, counts = np.unique(nodes, return_counts=True)
    return int(counts.max())
