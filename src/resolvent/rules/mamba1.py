"""Mamba's rule (Gu and Dao, 2024) for a first-order recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.rules.selective import SelectiveRule


@final
@dataclass(frozen=True)
class Mamba1(SelectiveRule):
    name = "mamba1"
    summary = "Mamba's rule: a step Δ per token and channel, B = exp(Δa), A = Δ; written by b, read by c"
    module = "mamba1.Mamba1Coefficients"
