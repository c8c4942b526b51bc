"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends behind it."""

from resolvent.ops.cache import Cache, State
from resolvent.ops.cache_load import load_cache
from resolvent.ops.expanded import expanded_scan
from resolvent.ops.interface import choose_backend, extend, mix, solve
from resolvent.ops.scan import scan
from resolvent.ops.several import Caches
from resolvent.ops.slots import DecodeCache, Normalise

__all__ = [
    "Cache",
    "Caches",
    "DecodeCache",
    "Normalise",
    "State",
    "choose_backend",
    "expanded_scan",
    "extend",
    "load_cache",
    "mix",
    "scan",
    "solve",
]
