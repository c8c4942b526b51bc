"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends behind it."""

from resolvent.ops.api import choose_backend, extend, mix, solve
from resolvent.ops.cache.base import Cache
from resolvent.ops.cache.caches import Caches
from resolvent.ops.cache.scan_state import ScanState
from resolvent.ops.cache.slots import DecodeCache
from resolvent.ops.cache.stages import decode_cache
from resolvent.ops.scan import expanded_scan, scan

__all__ = [
    "Cache",
    "Caches",
    "DecodeCache",
    "ScanState",
    "choose_backend",
    "decode_cache",
    "expanded_scan",
    "extend",
    "mix",
    "scan",
    "solve",
]
