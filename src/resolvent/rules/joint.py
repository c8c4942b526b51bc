"""One softmax over direct reads and feedback together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.patterns import Pattern
from resolvent.rules.gated import GatedRule


@final
@dataclass(frozen=True)
class Joint(GatedRule):
    name = "joint"
    summary = "one softmax over all of (I - B)^-1 A: what is read directly competes with what is fed back"
    module = "softmax.SoftmaxCoefficients"
    normalize = "joint"

    def refusal(self, pattern: Pattern) -> str | None:
        return None if pattern.recurrent else "needs a pattern with feedback (without, it equals 'softmax')"
