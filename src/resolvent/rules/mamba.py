"""Mamba's rule and Mamba-2's (Gu and Dao, 2024): a state per channel that decays by exp(Δa), with steps Δ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from resolvent.errors import SettingError, shortened
from resolvent.rules.rule import Rule, require_choice, require_positive

_INPUTS = ("step", "complement")
_VECTORS = ("token", "ones")


@dataclass(frozen=True)
class SelectiveRule(Rule):
    """What can be changed about Mamba's rules, each by itself.

    state    numbers kept per channel
    decay    where exp(Δa) starts, `mamba` (close to 1) or a number such as 0.5
    input    what weighs an input, A: `step`, the step Δ, as Mamba has it; `complement`, 1 - B, as gated rules have it
    vectors  b, which writes into the state, and c, which reads it: of each `token`, or `ones`, for a single state
    skip     whether a learned multiple of the input is added to the output, as in Mamba's block
    """

    scan = True

    state: int = 16
    decay: str = "mamba"
    input: str = "step"
    vectors: str = "token"
    skip: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("state", self.state)
        number = self.decay if isinstance(self.decay, str) and re.fullmatch(r"\d*\.?\d+", self.decay) else "0"
        if self.decay != "mamba" and not 0 < float(number) < 1:
            raise SettingError(f"expected decay to be mamba or a number between 0 and 1, got {self.decay!r}.")
        require_choice("input", self.input, _INPUTS)
        require_choice("vectors", self.vectors, _VECTORS)
        if self.vectors == "ones" and self.state > 1:
            raise SettingError(f"without vectors all states would be read alike: expected state=1, got {self.state}.")
        if not isinstance(self.skip, bool):
            raise SettingError(f"expected skip to be true or false, got {shortened(self.skip)}.")

    @property
    def initial_decay(self) -> float | None:
        """None for Mamba's own initialization."""
        return None if self.decay == "mamba" else float(self.decay)

    def state_size(self, heads: int, head_dim: int) -> int:
        return heads * head_dim * self.state

    def state_madds(self, heads: int, head_dim: int) -> int:
        decay_write_read = 3 if self.vectors == "token" else 2
        return decay_write_read * self.state_size(heads, head_dim) + self.skip * heads * head_dim


@final
@dataclass(frozen=True)
class Mamba1(SelectiveRule):
    name = "mamba1"
    summary = "Mamba's rule: a step Δ per token and channel, B = exp(Δa), A = Δ; written by b, read by c"


@final
@dataclass(frozen=True)
class Mamba2(SelectiveRule):
    """groups: sets of write and read vectors that the heads share."""

    name = "mamba2"
    summary = "Mamba-2's rule: a step Δ per token and head, B = exp(Δa), A = Δ; written by b, read by c"

    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("groups", self.groups)
