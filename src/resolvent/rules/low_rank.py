"""A of low rank over all the past, feedback on the pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.patterns import Pattern
from resolvent.rules.rule import GatedRule, require_positive


@final
@dataclass(frozen=True)
class LowRank(GatedRule):
    name = "low-rank"
    summary = "A over all the past, of low rank (linear attention), and a softmax for B on the pattern"

    rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("rank", self.rank)

    def refusal(self, pattern: Pattern) -> str | None:
        if pattern.direct == "diagonal":
            return "needs a pattern whose A reads the past (its A reads all of it)"
        if len(pattern.stages) > 1 and not pattern.stages[0].is_dense:
            return "needs attention for A, as in 'attention/exponential' (its A reads all the past)"
        if not pattern.recurrent and pattern.stages[0].farthest is not None:
            return "needs attention or a pattern with feedback (its A reads all the past, not a window)"
        return None

    def operator_pattern(self, pattern: Pattern) -> Pattern:
        return pattern.with_diagonal_a()

    def shared_heads(self, heads: int, kv_heads: int) -> int:  # noqa: ARG002
        return heads  # what it feeds back is each head's own

    def reach(self, pattern: Pattern, n: int) -> int:  # noqa: ARG002
        return n - 1

    def state_size(self, heads: int, head_dim: int) -> int:
        return heads * (head_dim + 1) * self.rank  # with a column for the row sums

    def state_madds(self, heads: int, head_dim: int) -> int:
        return 2 * self.state_size(heads, head_dim)
