"""Congestion: how many tokens must share one state when n tokens are copied n places on.

Always `lower ≤ C ≤ upper`, each side with the argument that proves it, and every routing walked by `verify`.
Lower bounds: the path length (each of n paths visits d + 1 of 2n nodes) and the cut (every path crosses each cut
through a position that is still live). Upper bounds: routings, from the cheapest way of finding them to the dearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from resolvent.analysis import routers
from resolvent.analysis.hops import hops_by_distance, interval_reach
from resolvent.analysis.routing import Routing, verify
from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.errors import closest, require_length
from resolvent.patterns.strides import Integers

Effort = Literal["quick", "search", "exact"]

# Rip-up-and-reroute walks every edge once per path and round; the exact method has one unknown per path and edge.
_SEARCH_LIMIT = 50_000_000
_EXACT_LIMIT = 20_000


@dataclass(frozen=True)
class Congestion:
    """`lower ≤ C ≤ upper`; both infinite when some token cannot be carried at all."""

    lower: int | float
    upper: int | float
    lower_by: str
    upper_by: str
    routing: Routing | None = None
    note: str = ""

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def congestion(pattern: Pattern, n: int, effort: Effort = "search") -> Congestion:
    """Bounds on the congestion of copying n tokens.

    `effort`: "quick" for the bounds and the routers that take one pass; "search" adds rip-up-and-reroute while a gap
    is left and n is moderate; "exact" adds an integer program (SciPy's HiGHS) for small n.
    """
    n = require_length(n)
    if effort not in get_args(Effort):
        raise PatternError(
            f"expected effort {' or '.join(get_args(Effort))}, got {effort!r}.{closest(str(effort), get_args(Effort))}"
        )
    lower, lower_by = lower_bound(pattern, n)
    if math.isinf(lower):
        return Congestion(lower, lower, lower_by, lower_by)
    lower = int(lower)
    upper, upper_by, routing = _upper_bound(pattern, n, lower, effort != "quick")
    paths_and_edges = n * _edges(pattern, n)
    if effort != "quick" and routing is not None and upper > lower and paths_and_edges <= _SEARCH_LIMIT:
        improved = routers.reroute(pattern, n, lower, routing)
        if verify(pattern, improved) < upper:
            upper, upper_by, routing = improved.congestion, "rip-up-and-reroute", improved
    note = ""
    if effort == "exact" and upper > lower and (routing is None or paths_and_edges > _EXACT_LIMIT):
        note = f"integer program skipped: n = {n} is too large for it"
    elif effort == "exact" and routing is not None and upper > lower:
        proven, settled = _settle(pattern, n, lower, routing)
        if proven > lower:
            lower, lower_by = proven, "integer program"
        if settled.congestion < upper:
            upper, upper_by, routing = settled.congestion, "integer program", settled
    return Congestion(lower, upper, lower_by, upper_by, routing, note)


def _edges(pattern: Pattern, n: int) -> int:
    """About how many edges a path may use: those between two positions n apart."""
    return n * max(pattern.reads(n), 1)


def _upper_bound(pattern: Pattern, n: int, lower: int, search: bool) -> tuple[int, str, Routing | None]:
    """What shifting a path or sweeping over the sequence finds; no routing where it is too long to write out."""
    upper, upper_by, routing = n, "n paths in all", None
    if pattern.period(2 * n) == 1:
        path = routers.shortest_path(pattern, n)
        upper, upper_by = routers.shift_load(path, n), "shift routing"
        if n * len(path) <= routers.MOST_VISITS:
            routing = routers.shift(path, n)
            assert verify(pattern, routing) == upper
        elif not np.all(pattern.allows(path[1:], path[:-1])):
            raise AssertionError(f"{pattern}: shortest path leaves the pattern")
    if pattern.contiguous_columns and (upper > lower or upper_by == "n paths in all"):
        swept = routers.sweep(pattern, n, lower, search)
        if swept is not None and verify(pattern, swept) <= upper:
            upper, upper_by, routing = swept.congestion, "deadline sweep", swept
    return upper, upper_by, routing


def _settle(pattern: Pattern, n: int, lower: int, best: Routing) -> tuple[int, Routing]:
    """Ask the integer program for a better routing until it proves that there is none, or gives up."""
    from resolvent.analysis import exact

    while best.congestion > lower:
        verdict = exact.route_within(pattern, n, best.congestion - 1)
        if isinstance(verdict, Routing):
            verify(pattern, verdict)
            best = verdict
        else:
            return (best.congestion if verdict == "none" else lower), best
    return lower, best


def lower_bound(pattern: Pattern, n: int) -> tuple[int | float, str]:
    """The best proven lower bound and its argument; infinite when a token has no path."""
    if not pattern.recurrent:
        joined = bool(np.all(pattern.allows(np.arange(n) + n, np.arange(n))))
        return (1, "one path per token") if joined else (math.inf, "no feedback and no edge from i to i + n")
    bounds: list[tuple[int, str]] = [(1, "one path per token")]
    if pattern.contiguous_columns:
        lives, relay = interval_reach(pattern, 2 * n)
        from resolvent.analysis import kernels

        _, _, end = kernels.interval_hops(lives, relay)
        if np.any(end[:n] < np.arange(n) + n):
            return math.inf, "no path from some i to i + n"
    else:
        hops = int(hops_by_distance(pattern, n + 1)[n])
        if hops < 0:
            return math.inf, "no path from i to i + n"
        bounds.append((path_length_bound(hops), "path length"))
    bounds.append((cut_bound(pattern, n), "cut"))
    return max(bounds, key=lambda bound: bound[0])


def path_length_bound(hops: int) -> int:
    """N paths of at least `hops` edges on 2n nodes. A node at either end of the sequence cannot be full, hence + 1."""
    return 1 if hops < 2 else (hops + 1) // 2 + 1


def cut_bound(pattern: Pattern, n: int) -> int:
    """Each path that crosses from ≤ s to > s does so from a position that is still read: cache × congestion ≥ n."""
    s = np.arange(1, 2 * n)  # positions < s lie before the cut
    crossing = np.minimum(np.minimum(s, n), 2 * n - s)
    if pattern.contiguous_columns:
        lives = pattern.lives(2 * n)
        live = _held(lives)[1:]
        lives[:n] = 0
        crossing += _held(lives)[1:]  # a position ≥ n is also where a path ends, and that one does not cross
    else:
        strides = pattern.offsets(2 * n)
        back = np.arange(n)  # a position this far before the cut at s = n is live if its next reader comes before 2n
        following = np.searchsorted(strides, back, side="right")
        reader = strides[np.minimum(following, len(strides) - 1)]
        is_live = (following < len(strides)) & (n - 1 - back + reader < 2 * n)
        live, crossing = np.array([is_live.sum()]), np.array([n])
    return int(np.max(-(-crossing // np.maximum(live, 1))))


def occupancy(pattern: Pattern, n: int) -> Integers:
    """How many positions are held when token i is decoded, for each i < n."""
    return _held(pattern.lives(n))


def _held(lives: Integers) -> Integers:
    n = len(lives)
    born = (lives > 0).astype(np.int64)
    change = np.zeros(n + 1, dtype=np.int64)
    change[1:] += born
    dies = np.arange(n) + lives + 1
    change -= np.bincount(dies[(dies <= n) & (lives > 0)], minlength=n + 1)[: n + 1]
    return np.cumsum(change)[:n]
