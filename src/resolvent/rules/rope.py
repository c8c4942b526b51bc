"""Rotary positions as a value with a spelling: how queries and keys are turned, and what becomes of long distances."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError, closest, shortened

if TYPE_CHECKING:
    from resolvent.rules.rule import Rule

RopeSetting = float | str | None  # a base, a spelling, or no positions at all

BASE = 10_000.0
DIGITS = 3  # of base 256, which spell out a position beside keys that are read by their distance
_LARGEST = 2**24  # positions that the digits hold
_EXACT = 10**15  # integers that a float has the digits of
_OPTION = {"linear": "factor", "ntk": "factor", "near": "within", "capped": "within"}
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,18})?")


@final
@dataclass(frozen=True)
class Rope:
    """Queries and keys are turned by angles that grow with their positions, so that scores depend on i - j.

    base    of the angles' speeds, base^(-2m / D)
    kind    what becomes of distances that were not trained on
              plain    nothing
              linear   positions are divided by `factor` (position interpolation, Chen et al. 2023)
              ntk      the base is multiplied by factor^(D / (D - 2)) (NTK-aware scaling): the slowest angles are
                       stretched by the factor, the fastest stay as they are
              near     reads at distances up to `within` are turned, those beyond it not at all
              capped   the distance is min(i - j, within) (ReRoPE, Su 2023)

    Products of one query and one key per token can express the first three. The last two take one product for near
    reads, another one for far reads, and the distance to choose: see `resolvent.ops.by_distance`.
    """

    base: float = BASE
    kind: str = "plain"
    factor: float = 1.0
    within: int = 0

    def __str__(self) -> str:
        if self.kind == "plain":
            return _number(self.base)
        base = "" if self.base == BASE else f",base={_number(self.base)}"
        return f"{self.kind}:{_OPTION[self.kind]}={_number(getattr(self, _OPTION[self.kind]))}{base}"

    @property
    def by_distance(self) -> bool:
        """Whether scores of near and of far reads are different products."""
        return self.kind in ("near", "capped")

    def key_dim(self, key_dim: int) -> int:
        """Length of the queries and keys that the operator sees: by distance, both products and the position."""
        return 2 * key_dim + DIGITS if self.by_distance else key_dim


def as_rope(setting: RopeSetting) -> Rope | None:
    """Read a setting: a base such as 10000.0, None for no positions, or a spelling.

    >>> as_rope("ntk:factor=8")
    Rope(base=10000.0, kind='ntk', factor=8.0, within=0)
    """
    if isinstance(setting, str):
        return _parsed(setting)
    if setting is None:
        return None
    finite = not isinstance(setting, bool) and isinstance(setting, int | float) and 0 < setting <= sys.float_info.max
    if not finite:
        raise SettingError(
            f"expected rope to be a finite number > 0, or None, got {shortened(setting)}; or a spelling such as "
            "'ntk:factor=8'."
        )
    return Rope(setting)


def rope_setting(text: str) -> RopeSetting:
    """A setting as a command line has it: a number, `none` or a spelling."""
    if text.strip().lower() == "none":
        return None
    setting: RopeSetting = text.strip()
    with suppress(ValueError):
        setting = float(text)
    as_rope(setting)  # or an error
    return setting


def rope_label(setting: RopeSetting) -> str:
    """A setting in a word, for names: empty for what models have unless told otherwise."""
    return "" if setting == BASE else "no positions" if setting is None else str(as_rope(setting))


def require_rope_fit(rule: Rule, setting: RopeSetting, head_dim: int) -> None:
    """Raise an error if a spelled setting does not fit the rule. A base goes unused where there is nothing to turn."""
    if not isinstance(setting, str) or (rope := as_rope(setting)) is None:
        return
    if not rule.rotates(rope.base):
        raise SettingError(
            f"the '{rule.name}' rule has no queries and keys that positions turn: expected rope to be a number or "
            f"None, got '{setting}'."
        )
    if rope.by_distance and not rule.reads_by_distance:
        raise SettingError(
            f"the '{rule.name}' rule cannot read by distance: expected rope to be a number, linear:factor=… or "
            f"ntk:factor=…, or the rule to be softmax or tied, got '{setting}'."
        )
    if rope.kind == "ntk" and head_dim < 4:
        raise SettingError(f"ntk stretches all but the fastest angle: expected head_dim ≥ 4, got {head_dim}.")


def _number(value: float) -> str:
    """All digits, so that it is read as what it was."""
    return str(int(value)) if value == int(value) < _EXACT else repr(value)


def _parsed(spelling: str) -> Rope:
    kind, _, rest = spelling.strip().partition(":")
    if kind not in _OPTION:
        known = [f"{name}:{option}=…" for name, option in _OPTION.items()]
        raise SettingError(
            f"unknown rope {shortened(kind)}: expected a number, or {', '.join(known)}.{closest(kind[:99], _OPTION)}"
        )
    option, given = _OPTION[kind], {"base": BASE}
    for each in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in each.partition("="))
        if not equals or key not in (option, "base") or not _NUMBER.fullmatch(value):
            raise SettingError(
                f"{shortened(spelling)}: expected {option}=… and perhaps base=…, numbers, got {shortened(each)}."
            )
        given[key] = float(value)
    number = given.get(option)
    if given["base"] <= 0:
        raise SettingError(f"{shortened(spelling)}: expected base > 0, got {given['base']:g}.")
    if option == "within":
        if number is None or number != int(number) or number >= _LARGEST:
            raise SettingError(f"{shortened(spelling)}: expected within to be an integer from 0 to {_LARGEST - 1:,}.")
        return Rope(given["base"], kind, within=int(number))
    if number is None or number < 1:
        raise SettingError(f"{shortened(spelling)}: expected factor to be a number ≥ 1.")
    return Rope(given["base"], kind, factor=number)
