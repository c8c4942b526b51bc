"""A routing: n paths that carry token i to position i + n, on a sequence of 2n tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.strides import Integers


class RoutingError(ValueError):
    """A routing that does not follow the pattern."""


@dataclass(frozen=True, eq=False)
class Routing:
    """Path p visits `nodes[starts[p] : starts[p + 1]]`, from p to p + n, both included."""

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
        """From (token, node) visits in order of time."""
        order = np.argsort(tokens, kind="stable")
        starts = np.searchsorted(tokens[order], np.arange(n + 1))
        return cls(n, starts, nodes[order])

    def path(self, p: int) -> Integers:
        """The nodes of path p."""
        return self.nodes[self.starts[p] : self.starts[p + 1]]

    def __iter__(self) -> Iterator[Integers]:
        return (self.path(p) for p in range(self.n))

    def loads(self) -> Integers:
        """How many paths pass through each of the 2n nodes, endpoints counted."""
        return np.bincount(self.nodes, minlength=2 * self.n)

    @property
    def congestion(self) -> int:
        """The busiest node's load."""
        return int(self.loads().max())

    def draw(self) -> str:
        """The paths as text, one row each: where each token rests on its way."""
        if self.n > 64:
            raise PatternError(
                f"a routing is drawn as text for n ≤ 64, this one has n = {self.n}: plot its loads instead."
            )
        rows = []
        for p, path in enumerate(self):
            row = np.full(2 * self.n, "·")
            row[p : p + self.n] = "─"
            row[path] = "●"
            rows.append("".join(row))
        loads = self.loads()
        digits = [str(load) if load < 10 else "+" for load in loads]
        return "\n".join([*rows, "".join(digits) + f"  load per node, at most {loads.max()}"])


def verify(pattern: Pattern, routing: Routing) -> int:
    """Walk every path; return the congestion, or raise at the first step the pattern does not allow.

    Shares no code with the routers: it asks the pattern about each edge, and counts the loads anew.
    """
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
    if not pattern.recurrent and np.any(np.diff(starts) != 2):
        raise RoutingError(f"{pattern} has no feedback, so a path is one edge; some paths are longer.")
    _, counts = np.unique(nodes, return_counts=True)
    return int(counts.max())
