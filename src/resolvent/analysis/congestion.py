"""Congestion: how many tokens must share one state when n tokens are copied to the next n positions.

Bounds `lower ≤ C ≤ upper` come with the argument that proves each, and every routing is checked by `verify`.
`lower_bounds` has the arguments for the one, `routers` the routings for the other, by increasingly expensive methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from resolvent.analysis import routers
from resolvent.analysis.hops import as_intervals, reads_at_fixed_distances
from resolvent.analysis.lower_bounds import lower_bound, require_copy
from resolvent.analysis.routing import Routing, verify
from resolvent.analysis.steps import MOST_POSITIONS, hops_apart, list_steps
from resolvent.errors import SettingError, closest
from resolvent.patterns import Pattern, PatternLike, as_pattern
from resolvent.patterns.checks import require_length

Effort = Literal["quick", "search", "exact"]

# Rip-up-and-reroute walks every edge once per path and round; the exact method has one unknown per path and edge.
_SEARCH_LIMIT = 300_000_000
_ROUNDS, _CHEAP = 60, 50_000_000  # fewer rounds where there are more edges than this
_EXACT_LIMIT = 20_000
_VERIFIED = 500_000  # visits up to which shifted copies of a path are checked one by one, and not the path alone
_SWEPT = 32_768  # tokens up to which paths are found by sweeps; beyond, a flow bounds their load and lists none


@dataclass(frozen=True)
class Congestion:
    """Bounds `lower ≤ C ≤ upper`; both are infinite if some token has no path.

    Attributes:
        lower: The proven lower bound.
        upper: The congestion of the best routing found.
        lower_by: The argument for the lower bound.
        upper_by: The method that found the upper bound.
        routing: The routing that attains `upper`; None if there is none or it is too long to list.
        note: Why a requested method was skipped, if one was.
    """

    lower: int | float
    upper: int | float
    lower_by: str
    upper_by: str
    routing: Routing | None = None
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether the bounds coincide."""
        return self.lower == self.upper

    def __repr__(self) -> str:
        if math.isinf(self.lower):
            return f"Congestion(∞: {self.lower_by})"
        return f"Congestion({self.lower:,} ≤ C ≤ {self.upper:,}: ≥ by {self.lower_by}, ≤ by {self.upper_by})"


def congestion(pattern: PatternLike, n: int | str, effort: Effort = "search") -> Congestion:
    """Bound the congestion of copying n tokens by n positions.

    Args:
        pattern: A pattern or its spelling.
        n: Number of tokens, as an integer or a string such as `"4k"`.
        effort: "quick" for the bounds and the one-pass routers; "search" adds rip-up-and-reroute if a gap remains and n
            is moderate; "exact" adds an integer program (SciPy's HiGHS) for small n.

    Returns:
        Proven bounds, with a routing that attains the upper one.

    >>> congestion("order:8", 1024).lower
    128
    """
    pattern, n = as_pattern(pattern), require_length(n)
    if effort not in get_args(Effort):
        raise SettingError(
            f"expected effort {' or '.join(get_args(Effort))}, got {effort!r}.{closest(str(effort), get_args(Effort))}"
        )
    require_copy(pattern, n)
    lower, lower_by = lower_bound(pattern, n)
    if math.isinf(lower):
        return Congestion(lower, lower, lower_by, lower_by)
    lower = int(lower)
    upper, upper_by, routing = _upper_bound(pattern, n, lower, effort != "quick")
    paths_and_edges = n * _edges(pattern, n)
    if effort != "quick" and routing is not None and upper > lower and paths_and_edges <= _SEARCH_LIMIT:
        rounds = min(_ROUNDS, _ROUNDS * _CHEAP // paths_and_edges)
        improved = routers.reroute(pattern, n, lower, routing, rounds)
        if verify(pattern, improved) < upper:
            upper, upper_by, routing = improved.congestion, "rip-up-and-reroute", improved
    note = ""
    if effort == "exact" and upper > lower and (routing is None or paths_and_edges > _EXACT_LIMIT):
        note = f"integer program skipped: n = {n} is too large for it"
    elif effort == "exact" and routing is not None and upper > lower:
        proven, improved = _solve_exactly(pattern, n, lower, routing)
        if proven > lower:
            lower, lower_by = proven, "integer program"
        if improved.congestion < upper:
            upper, upper_by, routing = improved.congestion, "integer program", improved
    return Congestion(lower, upper, lower_by, upper_by, routing, note)


def _edges(pattern: Pattern, n: int) -> int:
    """Roughly the number of edges that a path can use: those between two positions n apart."""
    if as_intervals(pattern) is not None or reads_at_fixed_distances(pattern, n) or not _lists_steps(pattern, n):
        return n * max(pattern.reads(n), 1)
    return list_steps(pattern, 2 * n).count // 2


def _lists_steps(pattern: Pattern, n: int) -> bool:
    """Whether its steps are listed: unless it is long, and all its columns are contiguous."""
    return 2 * n <= MOST_POSITIONS or not all(stage.contiguous_columns for stage in pattern.stages)


def _upper_bound(pattern: Pattern, n: int, lower: int, search: bool) -> tuple[int, str, Routing | None]:
    """The better of the one-pass routings; the routing is None if it is too long to list."""
    upper, upper_by, routing = n, "n paths in all", None
    if shifted := reads_at_fixed_distances(pattern, 2 * n):
        path = routers.shortest_path(pattern, n)
        upper, upper_by = routers.shift_load(path, n), "shift routing"
        if n * len(path) <= routers.MOST_VISITS:
            routing = routers.shift(path, n)
        if routing is not None and n * len(path) <= _VERIFIED:
            assert verify(pattern, routing) == upper
        elif not np.all(pattern.allows(path[1:], path[:-1])):
            raise AssertionError(f"{pattern}: shortest path leaves the pattern")
    elif not pattern.recurrent:  # then all paths are edges, or there would be none
        routing = routers.shift(np.array([0, n]), n)
        upper, upper_by = verify(pattern, routing), "shift routing"
    listed = pattern.recurrent and as_intervals(pattern) is None and not shifted
    if listed and _lists_steps(pattern, n):
        routing = routers.shortest(pattern, n, hops_apart(pattern, range(n, n + 1))[n])
        if routing is not None:
            upper, upper_by = verify(pattern, routing), "shortest paths"
    last = pattern.stages[-1]  # in a pair, paths can follow B alone
    if last.recurrent and last.contiguous_columns and (upper > lower or upper_by == "n paths in all"):
        load = routers.persistent_load(last, n) if n > _SWEPT else None
        swept = routers.sweep(last, n, lower, search) if load is None else None
        if swept is not None and verify(pattern, swept) <= upper:
            upper, upper_by, routing = swept.congestion, "deadline sweep", swept
        if load is not None and load + 1 < upper:
            upper, upper_by, routing = load + 1, "flow through what is held", None
    return upper, upper_by, routing


def _solve_exactly(pattern: Pattern, n: int, lower: int, best: Routing) -> tuple[int, Routing]:
    """Run the integer program for better routings until it proves that there is none, or times out."""
    while best.congestion > lower:
        result = routers.route_within(pattern, n, best.congestion - 1)
        if isinstance(result, Routing):
            verify(pattern, result)
            best = result
        else:
            return (best.congestion if result == "none" else lower), best
    return lower, best
