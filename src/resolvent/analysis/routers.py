"""Search for routings of low congestion. Every routing is checked by `routing.verify`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from resolvent.analysis.hops import hops_by_distance
from resolvent.analysis.routing import Routing
from resolvent.analysis.steps import hop_blocks, list_steps
from resolvent.patterns import Lifetimes, Pattern, Stage
from resolvent.patterns.lifetimes import Binomial
from resolvent.patterns.stage import Strided
from resolvent.patterns.strides import Contiguous, Integers

# A routing is listed only up to this many node visits in total (40 MB); beyond that, bounds come without one.
MOST_VISITS = 5_000_000
# Which of several tokens with equal deadlines moves first decides the last unit of congestion: try random orders.
RETRIES = 30
_SECONDS = 60.0  # for an integer program
_MOST_HELD = 400_000_000  # positions held, over all tokens, up to which all intervals are tried


def shortest_path(pattern: Pattern, n: int) -> Integers:
    """A shortest path from 0 to n in a translation-invariant pattern, found from its end.

    Any stride of B before which one hop less was needed lies on a shortest path.
    """
    fewest = hops_by_distance(pattern, n + 1)
    strides = pattern.stages[-1].offsets(n + 1)
    if len(pattern.stages) == 1 and len(strides) == strides[-1]:  # a window: always the longest stride
        return np.concatenate([[0], np.arange(n, 0, -strides[-1])[::-1]])
    path = [n]
    while (m := path[-1]) and fewest[m] > 1:
        usable = strides[: np.searchsorted(strides, m, side="right")]
        path.append(m - int(usable[np.flatnonzero(fewest[m - usable] == fewest[m] - 1)[-1]]))
    return np.array([*path, 0][::-1], dtype=np.int64)


def shift_load(path: Integers, n: int) -> int:
    """The congestion of n copies of a path from 0 to n, each shifted by one: its most nodes in n consecutive positions.

    Node v lies on copy v - u for each node u of the path with v - n < u ≤ v. At most the number of hops, since the
    two ends of the path are n apart.
    """
    return int(np.max(np.arange(len(path)) - np.searchsorted(path, path - n, side="right") + 1))


def shift(path: Integers, n: int) -> Routing:
    """The routing of n copies of a path from 0 to n, each shifted by one."""
    nodes = np.add.outer(np.arange(n, dtype=np.int64), path)
    return Routing(n, np.arange(n + 1, dtype=np.int64) * len(path), nodes.ravel())


def shortest(pattern: Pattern, n: int, hops: Integers) -> Routing | None:
    """A shortest path for each token, in turn, through the least loaded nodes; for any pattern.

    `hops` are those from each p to p + n. None if the routing would be too long to list.
    """
    from resolvent.analysis import kernels

    starts = np.concatenate([[0], np.cumsum(hops + 1)])
    if starts[-1] > MOST_VISITS:
        return None
    steps = list_steps(pattern, 2 * n)
    nodes, load = np.empty(starts[-1], dtype=np.int64), np.zeros(2 * n, dtype=np.int64)
    for begin, block in hop_blocks(steps, n, n + 1):
        kernels.shortest_routes(*steps.later, block, begin, n, load, starts, nodes)
    return Routing(n, starts, nodes)


def sweep(pattern: Stage, n: int, lower: int, search: bool = True) -> Routing | None:
    """Deadline sweep for patterns with contiguous columns: move all tokens forward together, earliest deadline first.

    With `search`, finds the least capacity at which an eager sweep loses no token (beyond n = 4096, to within 6 %),
    starting at the proven lower bound, which it meets in nearly all cases. Without, one patient sweep: few hops, high
    load. None if the routing would be too long to list.
    """
    best = sweep_within(pattern, n, n, eager=False)
    failed, step, capacity = lower - 1, 1 + n // 1024, lower
    good_enough = 1 if n <= 4096 else 1 + lower // 16
    while best is not None and search and best.congestion - failed > good_enough:
        routing = sweep_within(pattern, n, capacity)
        if routing is None:
            failed = capacity
        elif routing.congestion < best.congestion:
            best = routing
        # Gallop up from the lower bound while nothing works, but never past the middle; then bisect.
        middle = (failed + best.congestion) // 2
        capacity, step = min(capacity + step, middle) if routing is None else middle, 2 * step
    return best


def sweep_within(pattern: Stage, n: int, capacity: int, *, eager: bool = True) -> Routing | None:
    """A routing of at most this load by a deadline sweep, see `sweep`; None if no order of the tokens gives one."""
    from resolvent.analysis import kernels

    lives = pattern.lives(2 * n)
    if n * (n // max(int(lives.max()), 1) + 2) > MOST_VISITS:
        return None
    following = kernels.next_longer(lives)
    rng = np.random.default_rng(0)
    orders = [np.arange(n)] if n > 4096 else [np.arange(n), np.arange(n)[::-1].copy()]
    orders += [rng.permutation(n) for _ in range(RETRIES if n <= 4096 else 0)]
    for order in orders:
        tokens, nodes = kernels.sweep(lives, following, n, capacity, eager, order, MOST_VISITS)
        if len(tokens):
            return Routing.from_visits(n, tokens, nodes)
    return None


def held_size(stage: Stage) -> int | None:
    """The positions it holds from some token on, if gaps between them grow towards the past: windows, lazy binomial."""
    if isinstance(stage, Lifetimes) and isinstance(stage.lifetime, Binomial) and stage.lifetime.lazy:
        return stage.lifetime.size
    if isinstance(stage, Strided) and isinstance(stage.strides, Contiguous) and stage.strides.size:
        return stage.strides.size
    return None


def persistent_load(stage: Stage, n: int, numerator: int = 1, denominator: int = 1, surplus: int = 0) -> int | None:
    """The least load of n tokens that never arrive: each stays on its way until the last of 2n positions is decoded.

    For patterns with contiguous columns. By max-flow and min-cut it is the largest quotient, over intervals of
    positions, of the tokens that start in one and the positions of it that are still read after it. If each token
    leaves its path where it passes the end of its own, the load is at most one more: a bound on congestion, of which
    no path need be listed. docs/theory.md, section 12, has the proof.

    Args:
        stage: The pattern.
        n: Number of tokens.
        numerator: Each token counts as numerator / denominator,
        denominator: in integers such that
        surplus: any run of tokens counts at most so much more.

    Returns:
        The load; None if there are too many intervals, or a token is not read.
    """
    if (size := held_size(stage)) is not None:  # an interval that holds r of s positions has at most r n/s tokens
        return max(-(-(numerator * max(n, size) + surplus * denominator * size) // (denominator * size)), 1)
    last = np.minimum(np.arange(2 * n) + stage.lives(2 * n), 2 * n - 1)
    if int((last - np.arange(2 * n)).sum()) > _MOST_HELD:
        return None
    from resolvent.analysis import reach_kernels

    arrays = np.zeros((2, 2 * n + 1), dtype=np.int64)
    load = int(reach_kernels.persistent_load(last, n, numerator, denominator, surplus, *arrays))
    return load if load > 0 else None


def reroute(pattern: Pattern, n: int, lower: int, start: Routing, rounds: int = 60, seed: int = 0) -> Routing:
    """Improve a routing by rip-up-and-reroute, for any pattern: bisects between the lower bound and the best so far."""
    from resolvent.analysis import kernels

    steps = list_steps(pattern, 2 * n)
    readers = steps.readers()
    best, target, failed = start, lower, lower - 1
    while failed < best.congestion - 1:
        on_path = np.zeros((n, n + 1), dtype=np.bool_)
        for p, path in enumerate(best):
            on_path[p, path - p] = True
        if kernels.reroute(steps.later, readers, n, on_path, target, rounds, seed):
            best = Routing.from_paths([np.flatnonzero(row) + p for p, row in enumerate(on_path)])
        else:
            failed = target
        target = (failed + best.congestion) // 2
    return best


def route_within(pattern: Pattern, n: int, capacity: int) -> Routing | Literal["none", "undecided"]:
    """Find a routing with at most `capacity` paths through any node; "none" is a proof that there is none.

    An integer program with one 0/1 variable per path and edge, for small n. SciPy's HiGHS rather than OR-Tools' CP-SAT:
    after bounds and routers a few thousand variables are left at most, and most users have SciPy installed.
    """
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
        options={"time_limit": _SECONDS},
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
