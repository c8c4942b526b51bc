"""How much each token takes from what it reads: rules for the numbers in A and B, as values with a spelling.

A rule knows which patterns it fits and what a layer keeps and computes under it. The modules that learn the numbers
are in `resolvent.coefficients`; here are the facts about them, without torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import ClassVar, final

from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.errors import closest, is_integer

_GATE = re.compile(r"(?:(token|scalar)@)?(\d*\.?\d+)")
_SHAPES = ("toeplitz", "decay", "constant")
_FORMS = ("mingru", "griffin")
DIGITS = 8  # length of the keys that spell out a position, padded to whole vectors


@dataclass(frozen=True)
class Coefficients:
    """A rule for the coefficients of a layer. `str` gives its spelling, `coefficients(text)` reads it."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    first_order: ClassVar[bool] = False  # whether the recurrence goes from each token to the next alone

    def __str__(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return self.name + ("" if not changed else ":" + ",".join(f"{key}={value}" for key, value in changed))

    def refusal(self, pattern: Pattern) -> str | None:
        """Why the rule does not fit the pattern, or None if it does."""
        return None if not self.first_order or _is_first_order(pattern) else _ONLY_FIRST_ORDER


@dataclass(frozen=True)
class Gated(Coefficients):
    """Rules in which a gate g divides each row between A, 1 - g, and B, g.

    gate: `mamba` (per token, Mamba-2's start: close to 1), `half` = `token@0.5` (per token, starts at 0.5),
    `token@0.1`, `scalar@0.5` (one learned number per head), or a number: constant, as in ChaCAL.
    """

    gate: str = "half"

    def __post_init__(self) -> None:
        parse_gate(self.gate)


@final
@dataclass(frozen=True)
class Softmax(Gated):
    name = "softmax"
    meaning = "attention-like: a softmax over scores of queries and keys, for A and for B, and a gate between them"


@final
@dataclass(frozen=True)
class Whole(Gated):
    name = "whole"
    meaning = "one softmax over the whole of (I - B)^-1 A: what is read directly competes with what is fed back"

    def refusal(self, pattern: Pattern) -> str | None:
        return None if pattern.recurrent else "without feedback it is the same as softmax"


@final
@dataclass(frozen=True)
class Tied(Gated):
    name = "tied"
    meaning = "A = δB + D' with a learned δ per head: one set of scores, half the work and half the cache"

    def refusal(self, pattern: Pattern) -> str | None:
        return None if pattern.recurrent else "there is no B to tie A to"


@final
@dataclass(frozen=True)
class Distance(Gated):
    """shape: `toeplitz` (any learned function of the distance, through rotated constant queries and keys), `decay`
    (exponential, at a learned rate per head, as in RetNet), `constant` (a mean over what is read).
    """

    name = "distance"
    meaning = "a learned function of the distance alone"

    shape: str = "toeplitz"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_choice("shape", self.shape, _SHAPES)


@final
@dataclass(frozen=True)
class LowRank(Gated):
    name = "low-rank"
    meaning = "A over all the past, of low rank (linear attention), and a softmax for B on the pattern"

    rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("rank", self.rank)

    def refusal(self, pattern: Pattern) -> str | None:
        if pattern.direct == "diagonal":
            return "its A reads all the past, not the token alone"
        if not pattern.recurrent and pattern.strides.last is not None:
            return "its A reads all the past, not a window: use attention"
        return None


@final
@dataclass(frozen=True)
class Mamba(Coefficients):
    """state: numbers kept per channel. groups: sets of write and read vectors that the heads share."""

    name = "mamba"
    meaning = "Mamba's rule: a step Δ per token, B = exp(Δa), A = Δ; written by b, read by c through an expanded state"
    first_order = True

    state: int = 16
    groups: int = 1

    def __post_init__(self) -> None:
        _require_positive("state", self.state)
        _require_positive("groups", self.groups)


@final
@dataclass(frozen=True)
class Linear(Coefficients):
    """form: `mingru` (y = (1-z) y' + z x) or `griffin` (a = exp(-8 softplus(Λ) r), y = a y' + √(1-a²) i x)."""

    name = "linear"
    meaning = "a linear recurrence with gates per channel, as in minGRU or Griffin"
    first_order = True

    form: str = "mingru"

    def __post_init__(self) -> None:
        _require_choice("form", self.form, _FORMS)


RULES: dict[str, type[Coefficients]] = {
    rule.name: rule for rule in (Softmax, Whole, Tied, Distance, LowRank, Mamba, Linear)
}
_ONLY_FIRST_ORDER = "each token goes on from the one before alone: use first-order"


def coefficients(spec: str | Coefficients) -> Coefficients:
    """Read a spelling such as `softmax`, `tied:gate=0.5` or `mamba:state=64`.

    >>> coefficients("distance:shape=decay,gate=scalar@0.3")
    Distance(gate='scalar@0.3', shape='decay')
    """
    if isinstance(spec, Coefficients):
        return spec
    if not isinstance(spec, str):
        raise PatternError(f"expected coefficients by name, such as 'softmax', got {spec!r}.")
    name, _, rest = spec.strip().partition(":")
    if name not in RULES:
        raise PatternError(f"unknown coefficients '{name}': expected {', '.join(RULES)}.{closest(name, RULES)}")
    rule = RULES[name]
    known = {field.name: field.default for field in fields(rule)}
    given: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in known:
            raise PatternError(f"'{spec}': expected {_options(known)}, got '{part}'.{closest(key, known)}")
        number = isinstance(known[key], int)
        if number and not re.fullmatch(r"\d+", value):
            raise PatternError(f"'{spec}': expected a whole number for {key}, got '{value}'.")
        given[key] = int(value) if number else value
    return rule(**given)


def fit(rule: Coefficients, pattern: Pattern) -> None:
    """Raise if the rule does not fit the pattern."""
    why = rule.refusal(pattern)
    if why is not None:
        fitting = [other.name for other in RULES.values() if other().refusal(pattern) is None]
        raise PatternError(f"{rule} does not fit {pattern}: {why}. Rules that fit it: {', '.join(fitting)}.")


def as_run(rule: Coefficients, pattern: Pattern) -> Pattern:
    """The pattern on which the operator then runs: tied and low-rank layers leave A's diagonal alone to it."""
    return replace(pattern, direct="diagonal") if isinstance(rule, Tied | LowRank) else pattern


def parse_gate(gate: str) -> tuple[str, float | None]:
    """Kind of gate (token, scalar or constant) and where it starts; None for Mamba-2's start.

    >>> parse_gate("half"), parse_gate("0.3"), parse_gate("mamba")
    (('token', 0.5), ('constant', 0.3), ('token', None))
    """
    if gate == "mamba":
        return "token", None
    found = _GATE.fullmatch("token@0.5" if gate == "half" else gate) if isinstance(gate, str) else None
    kind, start = (found[1] or "constant", float(found[2])) if found else ("", -1.0)
    inside = 0 <= start <= 1 if kind == "constant" else 0 < start < 1
    if not inside:
        raise PatternError(
            f"expected gate as mamba, half, token@0.3, scalar@0.3 or a constant from 0 to 1 such as 0.5, got {gate!r}."
        )
    return kind, start


def _is_first_order(pattern: Pattern) -> bool:
    return pattern.recurrent and pattern.direct == "diagonal" and pattern.strides.last == 1


def _options(known: dict[str, object]) -> str:
    return " or ".join(f"{key}=…" for key in known) if known else "no options"


def _require_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PatternError(f"expected {key} to be {' or '.join(choices)}, got {value!r}.{closest(str(value), choices)}")


def _require_positive(key: str, value: object) -> None:
    if not is_integer(value) or value < 1:  # type: ignore[operator]
        raise PatternError(f"expected {key} to be an integer ≥ 1, got {value!r}.")
