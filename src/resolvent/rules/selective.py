"""What Mamba's rule and Mamba-2's share: a state per channel that decays by exp(Δa), with steps Δ from the input."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resolvent.errors import SettingError
from resolvent.rules.rule import Rule, require_positive


@dataclass(frozen=True)
class SelectiveRule(Rule):
    """state: numbers kept per channel. decay: where exp(Δa) starts, `mamba` (close to 1) or a number such as 0.5."""

    scan = True

    state: int = 16
    decay: str = "mamba"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("state", self.state)
        number = self.decay if isinstance(self.decay, str) and re.fullmatch(r"\d*\.?\d+", self.decay) else "0"
        if self.decay != "mamba" and not 0 < float(number) < 1:
            raise SettingError(f"expected decay to be mamba or a number between 0 and 1, got {self.decay!r}.")

    @property
    def initial_decay(self) -> float | None:
        """None for Mamba's own initialization."""
        return None if self.decay == "mamba" else float(self.decay)

    def state_size(self, heads: int, head_dim: int) -> int:
        return heads * head_dim * self.state

    def state_madds(self, heads: int, head_dim: int) -> int:
        return 3 * self.state_size(heads, head_dim)  # decay, write, read
