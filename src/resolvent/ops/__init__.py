"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends behind it."""

from resolvent.ops.cache import Cache, State
from resolvent.ops.cache_load import load_cache
from resolvent.ops.interface import choose_backend, extend, mix, solve
from resolvent.ops.several import Caches
from resolvent.ops.slots import DecodeCache

__all__ = ["Cache", "Caches", "DecodeCache", "State", "choose_backend", "extend", "load_cache", "mix", "solve"]
