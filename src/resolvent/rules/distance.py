"""Weights that depend on the distance alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.rules.rope import RopeSetting
from resolvent.rules.rule import GatedRule, require_choice

DIGITS = 8  # length of the keys that spell out a position, padded to whole vectors
_SHAPES = ("toeplitz", "decay", "constant")


@final
@dataclass(frozen=True)
class Distance(GatedRule):
    """shape: `toeplitz` (any learned function of the distance, through rotated constant queries and keys), `decay`
    (exponential, at a learned rate per head, as in RetNet), `constant` (a mean over what is read).
    """

    name = "distance"
    summary = "a learned function of the distance alone"

    shape: str = "toeplitz"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("shape", self.shape, _SHAPES)

    def key_dim(self, head_dim: int) -> int:
        return head_dim if self.shape == "toeplitz" else DIGITS

    def rotates(self, rope: RopeSetting) -> bool:  # noqa: ARG002
        return self.shape == "toeplitz"  # with a base of its own if the layer has none
