"""Spellings of patterns, rules and lengths: read or refused in our own words, and what is read can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import resolvent as rv
from fuzz.case import Case, Difference
from fuzz.mutate import damage
from fuzz.permitted import permitted
from resolvent.errors import PatternError, SettingError
from resolvent.patterns import FAMILIES, MODIFIERS
from resolvent.patterns.checks import require_length
from resolvent.rules import RULES
from resolvent.rules import rule as rule_of
from tests.mixers import RULES as SPELLED_RULES
from tests.operator_cases import LIVES, PAIRED, STRIDED

_SPELLED = [*STRIDED, *LIVES, *PAIRED, rv.explicit(lambda i: [i // 2, i - 1] if i else [], n=250).spelling]
_SAMPLES = [family.sample for family in FAMILIES.values()]
_TERMS = [
    "k", "1", "2", "3", "7", "0", "-1", "1000000", "9" * 25, "2**62", "k**2", "2**k", "k%3", "k//2", "True", "1.5",
    "1e3",
]  # fmt: skip
_OPERATORS = ["+", "-", "*", "//", "%", "**", "/", "^", "and", "<<", " + "]
_NUMBERS = [
    "0", "1", "2", "8", "-3", "007", "1_000", "٣", "²", "1e3", "9" * 19, "9" * 40, "9" * 4400, "2**62", "", " 5 ",
    "0x10",
]  # fmt: skip


def spelling(case: Case) -> None:
    text = _spelling(case)
    case.say(text=text)
    with permitted(PatternError) as result:
        pattern = rv.pattern(text)
    if result.refused:
        case.count("refused")
        return
    if rv.pattern(pattern.spelling) != pattern:
        raise Difference(f"{pattern!r} is spelled '{pattern.spelling[:80]}', which is another pattern.")
    with permitted(PatternError):  # strides that stop increasing later are refused later
        _use(pattern)


def _use(pattern: rv.Pattern) -> None:
    limit = 1000 if pattern.limit is None else pattern.limit
    for i in (i for i in (0, 1, 5, 37, 200) if i < limit):
        sources = pattern.sources(i).tolist()
        if sources != sorted(set(sources)) or any(not 0 <= j < i for j in sources):
            raise Difference(f"token {i} of {pattern} reads {sources}.")
        if pattern.reads(i) != len(sources):
            raise Difference(f"reads({i}) is {pattern.reads(i)}, and there are {len(sources)} sources.")
        if not all(pattern.allows(i, j) for j in sources[:3]):
            raise Difference(f"token {i} of {pattern} reads what it does not allow.")
        for stage in pattern.stages:
            for j in stage.sources(i).tolist()[:3]:
                if not (i - j <= stage.life(j) and 0 <= stage.slot(j) < stage.slots(i + 1)):
                    raise Difference(f"token {i} reads {j}, which does not live so long, or has no slot.")
    for n in (1, min(50, limit)):
        if pattern.total_reads(n) != sum(pattern.reads(i) for i in range(n)):
            raise Difference(f"total_reads({n}) is {pattern.total_reads(n)}.")
        if pattern.widest_row(n) != max(pattern.reads(i) for i in range(n)):
            raise Difference(f"widest_row({n}) is {pattern.widest_row(n)}.")
        if (pattern.lives(n) > n).any() or pattern.mask(n).sum() != pattern.total_reads(n):
            raise Difference(f"lives or mask of {n} tokens do not fit.")


def _spelling(case: Case) -> str:
    if case.chance(0.2):
        return case.choose(["/", "/", "/", " / ", "//"]).join(_side(case) for _ in range(case.choose([2, 2, 2, 3])))
    return _side(case)


def _side(case: Case) -> str:
    match case.choose(["made", "made", "made", "damaged", "expression", "expression", "list", "numbers"]):
        case "numbers":
            family = FAMILIES[case.choose([name for name, each in FAMILIES.items() if each.source and each.argument])]
            numbers = [case.choose([*_NUMBERS, str(case.integer(0, 9))]) for _ in range(case.integer(1, 5))]
            return f"{family.name}:{','.join(numbers)}{_modifiers(case)}"
        case "damaged":
            return damage(case, case.choose([*_SPELLED, *_SAMPLES]).encode()).decode("utf-8", "replace")
        case "expression":
            return f"stride:{_expression(case, case.integer(0, 4))}{_modifiers(case)}"
        case "list":
            numbers = [case.choose([*_NUMBERS, str(case.integer(1, 99))]) for _ in range(case.integer(1, 5))]
            return "offsets:" + case.choose([",", ",", ", ", ";"]).join(numbers) + _modifiers(case)
    family = FAMILIES[case.choose(list(FAMILIES))]
    argument = case.choose([family.example, *_NUMBERS])
    return (f"{family.name}:{argument}" if family.argument or case.chance(0.1) else family.name) + _modifiers(case)


def _modifiers(case: Case) -> str:
    return "".join(case.choose([*MODIFIERS, "", "", "+", "+Cache", " +cache"]) for _ in range(case.integer(0, 3)))


def _expression(case: Case, depth: int) -> str:
    if not depth:
        return case.choose(_TERMS)
    left, right = _expression(case, depth - 1), _expression(case, case.integer(0, depth - 1))
    match case.choose(["binary", "binary", "binary", "binary", "paren", "call", "minus"]):
        case "paren":
            return f"({left})"
        case "call":
            return f"{case.choose(['min', 'max', 'abs', 'pow', 'eval'])}({left}, {right})"
        case "minus":
            return f"-{left}"
    return f"{left}{case.choose(_OPERATORS)}{right}"


def size(case: Case) -> None:
    """Lengths such as 128k."""
    text: Any = case.choose([*_NUMBERS, str(case.integer(0, 10**6)), "128k", "1M"]) + case.choose(
        ["", "k", "K", "Mi", "g", "T", "kk"]
    )
    if case.chance(0.3):
        text = damage(case, text.encode()).decode("utf-8", "replace")
    if case.chance(0.1):
        text = case.choose([None, True, 1.5, float("nan"), -1, 0, 10**30, [], "128k", b"1"])
    case.say(text=text)
    with permitted(PatternError):
        value = require_length(text)
        if not (isinstance(value, int) and 1 <= value <= 2**62):
            raise Difference(f"{text!r} is read as {value!r}.")


def rule(case: Case) -> None:
    names: list[Callable[[], str]] = [
        lambda: case.choose(SPELLED_RULES),
        lambda: damage(case, case.choose(SPELLED_RULES).encode()).decode("utf-8", "replace"),
        lambda: f"{case.choose(list(RULES))}:{case.choose(['state', 'rank', 'groups', 'gate', 'shape'])}"
                f"={case.choose([*_NUMBERS, 'mamba', 'scalar@nan', 'scalar@1', 'nan', '1e400', 'decay'])}",
    ]  # fmt: skip
    text = case.choose(names)()
    case.say(text=text)
    with permitted(SettingError) as result:
        made = rule_of(text)
    if not result.refused and rule_of(str(made)) != made:
        raise Difference(f"{made!r} is spelled '{made}', which is another rule.")
