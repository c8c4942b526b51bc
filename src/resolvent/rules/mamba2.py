"""Mamba-2's rule (Dao and Gu, 2024) for a first-order recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.rules.rule import require_positive
from resolvent.rules.selective import SelectiveRule


@final
@dataclass(frozen=True)
class Mamba2(SelectiveRule):
    """groups: sets of write and read vectors that the heads share."""

    name = "mamba2"
    summary = "Mamba-2's rule: a step Δ per token and head, B = exp(Δa), A = Δ; written by b, read by c"
    module = "mamba2.Mamba2Coefficients"

    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("groups", self.groups)
