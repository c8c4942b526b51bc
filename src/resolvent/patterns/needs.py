"""Which tensors an operator call needs: derived once, for every layer, kernel, cache and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Normalize = Literal["gate", "joint"]


@dataclass(frozen=True)
class Needs:
    """The tensors of a call, and those that a decoder caches.

    a      qa and ka: direct reads are weighted by scores
    b      qb and kb: feedback is weighted by scores; a softmax over a single source is 1 whatever its score
    gate   the share of feedback in each row
    cached kept for later tokens: a subset of "values", "keys_a", "outputs", "keys_b" and "logs"
    """

    a: bool
    b: bool
    gate: bool
    cached: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The required arguments besides x."""
        used = {"qa": self.a, "ka": self.a, "qb": self.b, "kb": self.b, "gate": self.gate}
        return tuple(name for name, needed in used.items() if needed)

    @classmethod
    def of_all(cls, stages: Sequence[Needs]) -> Needs:
        """What a call needs that runs through all of these."""
        cached = dict.fromkeys(name for each in stages for name in each.cached)
        a, b, gate = (any(getattr(each, name) for each in stages) for name in ("a", "b", "gate"))
        return cls(a, b, gate, tuple(cached))
