"""y = (I - B)^-1 A x: one public function per operation, interchangeable backends."""

from resolvent.ops.interface import choose_backend, mix, solve

__all__ = ["choose_backend", "mix", "solve"]
