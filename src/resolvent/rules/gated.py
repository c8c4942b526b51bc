"""Rules in which a gate g divides each row between A, 1 - g, and B, g; and how gates are spelled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resolvent.errors import SettingError, shortened
from resolvent.rules.rule import Rule

_GATE = re.compile(r"(?:(token|scalar)@)?(\d*\.?\d+)")


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
