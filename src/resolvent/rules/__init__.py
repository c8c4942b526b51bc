"""HOW MUCH each token takes from what it reads: rules for A and B as values, one file each. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

from resolvent.errors import SettingError, closest, shortened
from resolvent.patterns import Pattern
from resolvent.rules.distance import Distance
from resolvent.rules.linear import Linear
from resolvent.rules.low_rank import LowRank
from resolvent.rules.mamba import Mamba1, Mamba2
from resolvent.rules.rule import GatedRule, Rule
from resolvent.rules.softmax import Joint, Softmax, Tied

RULES: dict[str, type[Rule]] = {
    kind.name: kind for kind in (Softmax, Joint, Tied, Distance, LowRank, Mamba1, Mamba2, Linear)
}


class UnknownRuleError(SettingError):
    """No rule is registered under a name."""


def rule(spec: str | Rule) -> Rule:
    """Read a spelling such as `softmax`, `tied:gate=0.5` or `mamba2:state=64`.

    >>> rule("distance:shape=decay,gate=scalar@0.3")
    Distance(conv=0, gate='scalar@0.3', shape='decay')
    """
    if isinstance(spec, Rule):
        return spec
    if not isinstance(spec, str):
        raise SettingError(f"expected a rule by name, such as 'softmax', got {spec!r}.")
    name, _, rest = spec.strip().partition(":")
    if name not in RULES:
        raise UnknownRuleError(
            f"unknown rule {shortened(name)}: expected {', '.join(RULES)}.{closest(name[:99], RULES)} "
            "One of your own is known after resolvent.register_rule(rule, module)."
        )
    kind: Callable[..., Rule] = RULES[name]  # which checks its values
    known = {field.name: field.default for field in fields(RULES[name])}
    given: dict[str, object] = {}
    for option in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in option.partition("="))
        if not equals or key not in known:
            raise SettingError(
                f"{shortened(spec)}: expected {_options(known)}, got {shortened(option)}.{closest(key[:99], known)}"
            )
        given[key] = _value(spec, key, value, known[key])
    return kind(**given)


def _value(spec: str, key: str, text: str, default: object) -> object:
    """Of the type that the option's default has."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise SettingError(f"'{spec[:80]}': expected true or false for {key}, got '{text[:24]}'.")
        return text == "true"
    if isinstance(default, int):
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise SettingError(f"'{spec[:80]}': expected an integer for {key}, got '{text[:24]}'.")
        return int(text)
    return text


as_rule = rule  # for functions whose argument is called rule


def require_fit(rule: Rule, pattern: Pattern) -> None:
    """Raise an error if the rule does not fit the pattern."""
    why = rule.refusal(pattern)
    if why is not None:
        fitting = [kind.name for kind in RULES.values() if kind().refusal(pattern) is None]
        raise SettingError(f"the '{rule.name}' rule {why}, got '{pattern}'. Rules that fit it: {', '.join(fitting)}.")


def _options(known: dict[str, object]) -> str:
    return " or ".join(f"{key}=…" for key in known) if known else "no options"


__all__ = ["RULES", "GatedRule", "Rule", "as_rule", "require_fit", "rule"]
