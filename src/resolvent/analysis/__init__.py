"""What can be proved about a pattern: hops, congestion, cache, cost. Never imports torch."""

from resolvent.analysis.congestion import Congestion, congestion
from resolvent.analysis.cost import Cost, cost
from resolvent.analysis.growth import Growth, growth
from resolvent.analysis.hops import Hops, hop_matrix, hops, hops_by_distance
from resolvent.analysis.profile import Profile, analyze
from resolvent.analysis.routing import Routing, RoutingError, verify

__all__ = [
    "Congestion",
    "Cost",
    "Growth",
    "Hops",
    "Profile",
    "Routing",
    "RoutingError",
    "analyze",
    "congestion",
    "cost",
    "growth",
    "hop_matrix",
    "hops",
    "hops_by_distance",
    "verify",
]
