"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends."""

from resolvent.ops.interface import mix, solve

__all__ = ["mix", "solve"]
