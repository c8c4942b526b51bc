"""Provable properties of patterns: hops, congestion, cache and cost. Never imports torch."""

from resolvent.analysis.comparison import Comparison, compare
from resolvent.analysis.congestion import Congestion, congestion
from resolvent.analysis.cost import Cost, cost
from resolvent.analysis.growth import Growth, growth
from resolvent.analysis.hops import Hops, Paths, hop_matrix, hops, hops_by_distance, paths_to
from resolvent.analysis.profile import Least, Profile, analyze
from resolvent.analysis.routing import Routing, RoutingError, verify

__all__ = [
    "Comparison",
    "Congestion",
    "Cost",
    "Growth",
    "Hops",
    "Least",
    "Paths",
    "Profile",
    "Routing",
    "RoutingError",
    "analyze",
    "compare",
    "congestion",
    "cost",
    "growth",
    "hop_matrix",
    "hops",
    "hops_by_distance",
    "paths_to",
    "verify",
]
