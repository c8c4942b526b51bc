"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends behind it."""

from resolvent.ops.cache import DecodeCache
from resolvent.ops.interface import choose_backend, extend, mix, solve

__all__ = ["DecodeCache", "choose_backend", "extend", "mix", "solve"]
