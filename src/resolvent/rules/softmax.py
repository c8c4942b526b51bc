"""Rules that score by queries and keys: the paper's (`softmax`), one softmax over all of T (`joint`), A tied to B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.patterns import Pattern
from resolvent.rules.rule import GatedRule, require_choice

_BLENDS = ("token", "free")


@final
@dataclass(frozen=True)
class Softmax(GatedRule):
    name = "softmax"
    summary = "attention-like: a softmax over scores of queries and keys, for A and for B, and a gate between them"
    reads_by_distance = True


@final
@dataclass(frozen=True)
class Joint(GatedRule):
    name = "joint"
    summary = "one softmax over all of (I - B)^-1 A: what is read directly competes with what is fed back"
    normalize = "joint"

    def refusal(self, pattern: Pattern) -> str | None:
        return None if pattern.recurrent else "needs a pattern with feedback (without, it equals 'softmax')"


@final
@dataclass(frozen=True)
class Tied(GatedRule):
    """blend: `token`, what later tokens read of one is a blend of its input and its output, learned per token and head
    (the paper's D), and rows of A + B are convex combinations; `free`, a number δ per head that nothing bounds, as in
    models of version 1.
    """

    name = "tied"
    summary = "A = BD + D', one set of scores: half the work and half the cache"
    tied = True
    reads_by_distance = True

    blend: str = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("blend", self.blend, _BLENDS)

    def refusal(self, pattern: Pattern) -> str | None:
        if len(pattern.stages) > 1:
            return "needs a pattern whose A and B read the same positions"
        return None if pattern.recurrent else "needs a pattern with feedback (there is no B to tie A to)"
