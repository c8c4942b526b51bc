"""Linear recurrences with gates per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.rules.rule import Rule, require_choice

_FORMS = ("mingru", "griffin")


@final
@dataclass(frozen=True)
class Linear(Rule):
    """form: `mingru` (y = (1-z) y' + z x) or `griffin` (a = exp(-8 softplus(Λ) r), y = a y' + √(1-a²) i x)."""

    name = "linear"
    summary = "a linear recurrence with gates per channel, as in minGRU or Griffin"
    scan = True

    form: str = "mingru"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("form", self.form, _FORMS)

    def state_size(self, heads: int, head_dim: int) -> int:
        return heads * head_dim

    def state_madds(self, heads: int, head_dim: int) -> int:
        return 2 * heads * head_dim
