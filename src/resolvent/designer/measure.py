"""The exact figures of a structure: hops are exact, congestion lies between proven bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from resolvent.analysis.congestion import Congestion
from resolvent.analysis.hops import Hops, as_intervals, hops, hops_by_distance
from resolvent.analysis.lower_bounds import NEARBY, cut_bound, interval_bound, lower_bound, path_length_bound
from resolvent.analysis.routers import held_size, persistent_load, sweep_within
from resolvent.analysis.routing import verify
from resolvent.analysis.stack import stack_congestion, stack_hops
from resolvent.designer.structure import Structure
from resolvent.patterns import Pattern, Stage
from resolvent.patterns.stage import Strided

_FEW_HOPS = 256  # up to which the lengths near n are tried, too
_ROUTED = 2048  # tokens up to which routings are looked for


@dataclass(frozen=True)
class Figures:
    """What a structure costs and what it can express on n tokens: `designer.FIGURES` says what each figure is."""

    slots: float
    kib: float
    reads: float
    madds: float
    max_hops: int
    mean_hops: float
    congestion: Congestion

    def value(self, name: str) -> float:
        """A figure as a number: of congestion the upper bound."""
        return float(self.congestion.upper if name == "congestion" else getattr(self, name))


def measure_hops(structure: Structure, n: int) -> Hops:
    """Over all pairs, exactly."""
    if structure.is_uniform and (len(structure.layers) == 1 or structure.patterns[0].recurrent):
        return hops(structure.patterns[0], n)
    return stack_hops([[p for _, p in layer] for layer in structure.layers], n)


def measure_congestion(structure: Structure, n: int) -> Congestion:
    """Of copying n tokens by n positions, between proven bounds."""
    if structure.is_uniform and len(structure.layers) == 1:
        return pattern_congestion(structure.patterns[0], n)
    return stack_congestion([structure.heads_of(index) for index in range(len(structure.layers))], n)


def settled(structure: Structure, n: int, figures: Figures) -> Figures:
    """Bounds on congestion made to meet, where few tokens are copied and a sweep finds a routing of the least load."""
    bounds = figures.congestion
    p = structure.patterns[0]
    last = p.stages[-1]
    single = structure.is_uniform and len(structure.layers) == 1 and last.recurrent and last.contiguous_columns
    if bounds.exact or not single or n > _ROUTED:
        return figures
    routing = sweep_within(last, n, int(bounds.lower))
    if routing is None or verify(p, routing) > bounds.lower:
        return figures
    return replace(figures, congestion=replace(bounds, upper=bounds.lower, upper_by="deadline sweep"))


_cut = lru_cache(maxsize=16)(cut_bound)  # asked for twice: to prune, and as the lower bound


def congestion_at_a_cut(structure: Structure, n: int) -> float:
    """A lower bound that is quick, where the exact figure is not: of one pattern with contiguous columns."""
    p = structure.patterns[0]
    plain = structure.is_uniform and len(structure.layers) == 1 and isinstance(p, Stage) and held_size(p) is None
    return _cut(p, n) if plain and p.recurrent and as_intervals(p) is not None else 1


def pattern_congestion(p: Pattern, n: int) -> Congestion:
    """As `analysis.congestion`, by proofs that list no paths, so that it is quick for a million tokens.

    One length can flatter a pattern that reads at fixed distances: of these it is the worst within 8 of n.
    """
    last = p.stages[-1]
    if p.stages[0].is_dense:
        return Congestion(1, 1, "one path per token", "an edge for each token")
    if isinstance(p, Stage) and (size := held_size(p)) is not None and p.recurrent:
        least = -(-n // min(size, n))
        if isinstance(p, Strided) or size >= 2 * n:  # a window, or all of it
            return Congestion(least, least, "cut", "shift routing")
        return Congestion(least, min(least + 1, n), "cut", "flow through what is held")
    if all(stage.is_shifted(2 * n + 2 * NEARBY) for stage in p.stages) and as_intervals(p) is None:
        return _at_fixed_distances(p, n)
    load = persistent_load(last, n) if last.recurrent and last.contiguous_columns else None
    if load is None:
        lower, lower_by = lower_bound(p, n)
        return Congestion(lower, n if math.isfinite(lower) else lower, lower_by, "n paths in all")
    lower, lower_by = _cut(p, n), "cut"
    if lower < load and (sharper := interval_bound(p, n) or 1) > lower:
        lower, lower_by = sharper, "interval"
    return Congestion(lower, max(min(load + 1, n), lower), lower_by, "flow through what is held")


def _at_fixed_distances(p: Pattern, n: int) -> Congestion:
    """From above, copies of a shortest path, each shifted by one: as many hops. From below its length, and the cut.

    A node of the copies is on as many of them as the path has nodes in n positions in a row: all but one of its nodes.
    """
    by_distance = hops_by_distance(p, n + NEARBY + 1)
    if by_distance[n] < 0:
        return Congestion(math.inf, math.inf, "no path from some i to i + n", "no path from some i to i + n")
    radius = min(NEARBY, n - 1) if by_distance[n] <= _FEW_HOPS else 0
    lower, lower_by, upper = 1, "one path per token", 1
    for length in range(n - radius, n + radius + 1):
        if by_distance[length] < 0:
            return Congestion(math.inf, math.inf, f"no path over {length:,}", f"no path over {length:,}")
        hops_apart = int(by_distance[length])
        visits = path_length_bound(length * (hops_apart + 1), length)
        lower, lower_by = max((lower, lower_by), (visits, "path length"), key=lambda bound: bound[0])
        upper = max(upper, hops_apart)
    if p.recurrent and upper > lower and (cut := cut_bound(p, n)) > lower:
        lower, lower_by = cut, "cut"
    return Congestion(lower, upper, lower_by, "shift routing")
