"""One spelling of a pattern everywhere: Python, command line, config files, saved models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from resolvent.patterns.errors import PatternError, closest
from resolvent.patterns.pattern import Pattern
from resolvent.patterns.strides import Contiguous, Formula, Listed, Rule, Strides, check_birth
from resolvent.patterns.translation_invariant import TranslationInvariant

FAMILIES = {
    "attention": "every past position, no feedback",
    "local:w": "the last w positions (itself included), no feedback",
    "first-order": "feedback from the previous output only; A on the diagonal: a diagonal SSM",
    "order:k": "the last k positions",
    "dense": "every past position",
    "exponential": "1, 2, 4, 8, … back",
    "quadratic": "1, 2, 5, 10, 17, … back (k²+1)",
    "stride:EXPR": "f(0), f(1), … back, for any increasing expression in k, such as k**3+1",
    "offsets:LIST": "exactly these distances back, such as 1,2,5",
}
MODIFIERS = {
    "+cache": "round every read to a position the previous token still held: the cache stays small",
    "+attention": "no feedback (B = 0)",
    "+diagonal": "A on the diagonal only",
}
PAPER_STRUCTURES = (
    "attention",
    "local:8",
    "first-order",
    "order:8",
    "dense",
    "exponential",
    "exponential+cache",
    "quadratic",
    "quadratic+cache",
)

_SUFFIXES = re.compile(r"((?:\+(?:cache|attention|diagonal))*)$")
_REPR = re.compile(r"pattern\('(.*)'\)")


def pattern(spec: str | Pattern | Callable[[int], int]) -> Pattern:
    """A pattern from its spelling, such as `"exponential+cache"`, or from a function k ↦ stride.

    >>> pattern("stride:k**3+1+cache").sources(30)
    array([ 6, 20, 27, 28, 29])
    """
    if isinstance(spec, Pattern):
        return spec
    if callable(spec):
        return strided(spec)
    if not isinstance(spec, str):
        raise PatternError(f"expected a pattern, its name or a function of k, got {type(spec).__name__}. {_menu()}")
    return _read(spec)


@lru_cache(maxsize=256)  # decoding asks by name for every token; what a pattern has worked out is then kept, too
def _read(spec: str) -> Pattern:
    text = spec.strip()
    if match := _REPR.fullmatch(text):
        text = match[1]
    suffixes = _SUFFIXES.search(text)
    assert suffixes is not None  # the expression also matches nothing
    modifiers = set(suffixes[1].split("+")[1:])
    found = _family(text[: suffixes.start()], spec)
    if "attention" in modifiers or "diagonal" in modifiers:
        direct = "diagonal" if "diagonal" in modifiers else found.direct
        recurrent = found.recurrent and "attention" not in modifiers
        if direct == "diagonal" and not recurrent:
            raise PatternError(f"{spec!r} reads nothing but itself: without feedback, A must have its offsets.")
        found = TranslationInvariant(found.strides, direct, recurrent)
    return found.cache_efficient() if "cache" in modifiers else found


def window(w: int) -> Pattern:
    """Local attention over the last w positions, itself included: `local:w`."""
    return pattern(f"local:{w}")


def exponential() -> Pattern:
    """Strides 2^k: O(log n) reads per token."""
    return pattern("exponential")


def quadratic() -> Pattern:
    """Strides k²+1: O(√n) reads per token."""
    return pattern("quadratic")


def strided(rule: str | Callable[[int], int] | Iterable[int]) -> Pattern:
    """Strides from an expression in k, a function of k, or a list."""
    if isinstance(rule, str):
        return TranslationInvariant(Formula.parse(rule))
    if callable(rule):
        strides = Rule(rule)
        check_birth(strides, strides.spelling)
        return TranslationInvariant(strides)
    return TranslationInvariant(Listed(tuple(int(value) for value in rule)))


def _family(text: str, spec: str) -> TranslationInvariant:
    name, colon, argument = text.partition(":")
    match name, bool(colon):
        case "attention", False:
            return TranslationInvariant(Contiguous(None), recurrent=False)
        case "dense", False:
            return TranslationInvariant(Contiguous(None))
        case "first-order", False:
            return TranslationInvariant(Contiguous(1), direct="diagonal")
        case "exponential", False:
            return TranslationInvariant(Formula.parse("2**k"))
        case "quadratic", False:
            return TranslationInvariant(Formula.parse("k**2+1"))
        case "local", True:
            return TranslationInvariant(Contiguous(_size(argument, spec) - 1), recurrent=False)
        case "order", True:
            return TranslationInvariant(Contiguous(_size(argument, spec)))
        case "stride", True:
            if re.fullmatch(r"\s*<.*>\s*", argument):
                raise PatternError(f"{spec!r} names a Python function: pass the function itself to pattern(…).")
            return TranslationInvariant(Formula.parse(argument))
        case "offsets", True:
            return TranslationInvariant(_offsets(argument, spec))
    raise PatternError(f"unknown pattern {spec!r}.{_suggest(name, spec)} {_menu()}")


def _size(argument: str, spec: str) -> int:
    if not re.fullmatch(r"\s*[0-9]+\s*", argument) or int(argument) < 1:
        name = spec.partition(":")[0]
        raise PatternError(f"{spec!r} needs a size: expected an integer ≥ 1 as in '{name}:8', got {argument!r}.")
    return int(argument)


def _offsets(argument: str, spec: str) -> Strides:
    parts = [part.strip() for part in argument.split(",")]
    if not all(re.fullmatch(r"-?[0-9]+", part) for part in parts):
        raise PatternError(
            f"{spec!r}: expected integers with commas between them, as in 'offsets:1,2,5', got {argument!r}."
        )
    return Listed(tuple(map(int, parts)))


def _suggest(name: str, spec: str) -> str:
    examples = {"local": "local:8", "order": "order:8", "stride": "stride:k**3+1", "offsets": "offsets:1,2,5"}
    plain = [family for family in FAMILIES if ":" not in family]
    if name in examples:
        return f" It takes a value, for example '{examples[name]}'."
    if name in plain:
        return f" '{name}' takes no value after a colon."
    stem, plus, modifier = name.partition("+")
    if stem in plain and plus:
        near = closest(f"+{modifier}", MODIFIERS).replace("'+", f"'{stem}+")
        return f" '+{modifier}' is not a modifier.{near}"
    return closest(spec, [family + end for family in (*plain, *examples.values()) for end in ("", *MODIFIERS)])


def _menu() -> str:
    return "Expected one of " + ", ".join(FAMILIES) + ", each optionally followed by " + " or ".join(MODIFIERS) + "."
