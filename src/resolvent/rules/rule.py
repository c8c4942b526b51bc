"""What a rule is: how A and B are parameterized, as a value with a spelling. No torch here.

A rule knows which patterns it fits, what it needs of a layer, and what its own state costs. Which torch module learns
the numbers, `resolvent.coefficients` says.
"""

from __future__ import annotations

import re
from abc import ABC
from dataclasses import dataclass, fields
from typing import ClassVar

from resolvent.errors import SettingError, at_most, closest, is_integer, shortened
from resolvent.patterns import Needs, Normalize, Pattern
from resolvent.rules.rope import RopeSetting

_LARGEST = 2**31 - 1
_GATE = re.compile(r"(?:(token|scalar)@)?(\d*\.?\d+)")


@dataclass(frozen=True)
class Rule(ABC):
    """How A and B are parameterized. `str` gives its spelling, `resolvent.rules.rule` reads it.

    conv       an option of every rule: tokens that a causal convolution of the layer's input spans; 0 for none

    name       what its spelling starts with
    summary    one line for help texts
    normalize  how the operator normalizes rows, and `tied`, whether it ties A to B
    scan       whether it runs as a scan of its own, on first-order patterns alone, instead of through the operator
    reads_by_distance  whether its scores may be other products for far reads than for near ones (see `rules.rope`)
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    normalize: ClassVar[Normalize] = "gate"
    tied: ClassVar[bool] = False
    scan: ClassVar[bool] = False
    reads_by_distance: ClassVar[bool] = False

    conv: int = 0

    def __post_init__(self) -> None:
        if not is_integer(self.conv) or self.conv < 0:
            raise SettingError(f"expected conv to be an integer ≥ 0, got {self.conv!r}.")

    def __str__(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return self.name + ("" if not changed else ":" + ",".join(f"{key}={_spelled(value)}" for key, value in changed))

    def refusal(self, pattern: Pattern) -> str | None:
        """What the rule asks of a pattern that this one does not have, as in "needs a …"; None if it fits."""
        return None if not self.scan or pattern.is_first_order else "needs a first-order pattern"

    def operator_pattern(self, pattern: Pattern) -> Pattern:
        """The pattern that the operator runs on; rules that make A in another way leave it the diagonal."""
        return pattern.with_diagonal_a() if self.tied else pattern

    def needs(self, pattern: Pattern) -> Needs:
        """What the operator needs of a layer with this pattern."""
        return self.operator_pattern(pattern).needs(self.normalize)

    def key_dim(self, head_dim: int) -> int:
        """Length of queries and keys."""
        return head_dim

    def shared_heads(self, heads: int, kv_heads: int) -> int:  # noqa: ARG002
        """Heads of what the operator keeps of values and keys."""
        return kv_heads

    def rotates(self, rope: RopeSetting) -> bool:
        """Whether queries and keys are turned by rotary positions, which takes an even head dimension."""
        return rope is not None and not self.scan

    def reach(self, pattern: Pattern, n: int) -> int | None:  # noqa: ARG002
        """How far back a token reads in one hop, where that is not the pattern's affair."""
        return None

    def state_size(self, heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Numbers in a state that every token updates, beside what the operator keeps."""
        return 0

    def state_madds(self, heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Multiply-adds per token on that state."""
        return 0


@dataclass(frozen=True)
class GatedRule(Rule):
    """gate: `mamba` (per token, Mamba-2's initialization: close to 1), `half` = `token@0.5` (per token, starts at 0.5),
    `token@0.1`, `scalar@0.5` (one learned number per head), or a number: constant, as in ChaCAL.
    """

    gate: str = "half"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_gate(self.gate)


def parse_gate(gate: str) -> tuple[str, float | None]:
    """Kind of gate (token, scalar or constant) and its initial value; None for Mamba-2's initialization.

    >>> parse_gate("half"), parse_gate("0.3"), parse_gate("mamba")
    (('token', 0.5), ('constant', 0.3), ('token', None))
    """
    if gate == "mamba":
        return "token", None
    match = _GATE.fullmatch("token@0.5" if gate == "half" else gate) if isinstance(gate, str) else None
    kind, start = (match[1] or "constant", float(match[2])) if match else ("", -1.0)
    inside = 0 <= start <= 1 if kind == "constant" else 0 < start < 1
    if not inside:
        raise SettingError(
            f"expected gate as mamba, half, token@0.3, scalar@0.3 or a constant from 0 to 1 such as 0.5, "
            f"got {shortened(gate)}."
        )
    return kind, start


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingError(
            f"expected {key} to be {' or '.join(choices)}, got {shortened(value)}.{closest(str(value)[:99], choices)}"
        )


def require_positive(key: str, value: int) -> None:
    if not is_integer(value) or not 1 <= value <= _LARGEST:
        raise SettingError(f"expected {key} to be an integer ≥ 1{at_most(value, _LARGEST)}, got {value!r}.")
