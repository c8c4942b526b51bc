"""The exact method for small n: an integer program with one 0/1 variable per path and edge.

SciPy's HiGHS rather than OR-Tools' CP-SAT: the programs that remain after the bounds and routers are small (at most
a few thousand variables), HiGHS solves them in seconds, and most users have SciPy installed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from resolvent.analysis.routing import Routing
from resolvent.analysis.steps import list_steps
from resolvent.patterns import Pattern


def route_within(
    pattern: Pattern, n: int, capacity: int, seconds: float = 60.0
) -> Routing | Literal["none", "undecided"]:
    """Find a routing with at most `capacity` paths through any node; "none" is a proof that there is none."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ImportError("effort='exact' needs SciPy for its integer program: pip install scipy.") from error

    # One variable per (path, edge) such that the edge lies between the path's ends; A's own edges start a path.
    steps = list_steps(pattern, 2 * n)
    first, later = (
        [(int(j), i) for i in range(2 * n) for j in sources[starts[i] : starts[i + 1]]]
        for starts, sources in (steps.first, steps.later)
    )
    variables = [(p, j, i) for p in range(n) for j, i in later if p <= j and i <= p + n]
    variables += [(j, j, i) for j, i in first if j < n and i <= j + n]
    # Rows: flow into minus out of every node is -1 at a path's start, 1 at its end, 0 between; then the loads.
    rows, columns, values = [], [], []
    for column, (p, j, i) in enumerate(variables):
        for row, value in (
            (p * (n + 1) + i - p, 1),
            (p * (n + 1) + j - p, -1),
            (n * (n + 1) + i, 1),  # a path visits node i when it uses an edge into i
        ):
            rows.append(row)
            columns.append(column)
            values.append(value)
    flow = np.zeros((n, n + 1))
    flow[:, 0], flow[:, n] = -1, 1
    starts = (np.arange(2 * n) < n).astype(float)  # a path also visits the node where it starts
    matrix = coo_array((values, (rows, columns)), shape=(n * (n + 1) + 2 * n, len(variables))).tocsr()
    at_least = np.concatenate([flow.ravel(), np.full(2 * n, -np.inf)])
    at_most = np.concatenate([flow.ravel(), capacity - starts])
    result = milp(
        np.zeros(len(variables)),
        integrality=np.ones(len(variables)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, at_least, at_most),
        options={"time_limit": seconds},
    )
    if result.status == 2:
        return "none"
    if result.x is None:
        return "undecided"
    following = {(p, j): i for (p, j, i), used in zip(variables, result.x, strict=True) if used > 0.5}
    paths = []
    for p in range(n):
        path = [p]
        while path[-1] != p + n:
            path.append(following[p, path[-1]])
        paths.append(path)
    return Routing.from_paths(paths)
