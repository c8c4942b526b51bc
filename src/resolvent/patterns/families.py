"""Pattern families: the names that a spelling can start with, and the patterns they make.

To add a family, define a `Family` value and list it in `FAMILIES`.
"""

from __future__ import annotations

import re

from resolvent.errors import PatternError, shortened
from resolvent.patterns.explicit import Explicit
from resolvent.patterns.family import Family, Number, parse_integer, parse_numbers, parse_size
from resolvent.patterns.lifetimes import Binomial, Lifetimes
from resolvent.patterns.published import PUBLISHED
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Contiguous, Formula, Listed
from resolvent.patterns.table import Table
from resolvent.patterns.translation_invariant import TranslationInvariant

_MOST_HELD = 1024  # by a binomial pattern, whose arithmetic takes as many steps


def _stride(argument: str) -> Stage:
    if re.fullmatch(r"\s*<.*>\s*", argument):
        raise PatternError(
            f"{shortened('stride:' + argument)} names a Python function: pass the function itself to pattern(…)."
        )
    return TranslationInvariant(Formula.parse(argument))


def _offsets(argument: str) -> Stage:
    numbers = [number.strip() for number in argument.split(",")]
    if not all(re.fullmatch(r"-?[0-9]+", number) for number in numbers):
        raise PatternError(
            f"{shortened('offsets:' + argument)}: expected integers separated by commas, as in 'offsets:1,2,5', "
            f"got {shortened(argument)}."
        )
    return TranslationInvariant(Listed(tuple(map(parse_integer, numbers))))


def _binomial(argument: str) -> Stage:
    size, comma, lazy = argument.partition(",")
    if comma and lazy.strip() != "lazy":
        shown = argument[:40]
        raise PatternError(f"'binomial:{shown}': expected 'binomial:16' or 'binomial:16,lazy', got {shown!r}.")
    (held,) = parse_numbers("binomial", size, [Number("s", 1, _MOST_HELD)])
    return Lifetimes(Binomial(held, bool(comma)))


_ATTENTION = Family(
    "attention",
    "every past position, no feedback",
    lambda _: TranslationInvariant(Contiguous(None), recurrent=False),
)
_LOCAL = Family(
    "local",
    "a window of w tokens, itself included: the last w - 1 positions, no feedback",
    lambda w: TranslationInvariant(Contiguous(parse_size("local", w) - 1), recurrent=False),
    "w",
    "8",
)
_FIRST_ORDER = Family(
    "first-order",
    "feedback from the previous output only; A on the diagonal: a diagonal SSM",
    lambda _: TranslationInvariant(Contiguous(1), direct="diagonal"),
)
_ORDER = Family(
    "order",
    "the last k positions, itself not counted",
    lambda k: TranslationInvariant(Contiguous(parse_size("order", k))),
    "k",
    "8",
)
_DENSE = Family("dense", "every past position", lambda _: TranslationInvariant(Contiguous(None)))
_EXPONENTIAL = Family("exponential", "1, 2, 4, 8, … back", lambda _: TranslationInvariant(Formula.parse("2**k")))
_QUADRATIC = Family(
    "quadratic", "1, 2, 5, 10, 17, … back (k²+1)", lambda _: TranslationInvariant(Formula.parse("k**2+1"))
)
_STRIDE = Family(
    "stride",
    "f(0), f(1), … back, for any increasing expression in k, such as k**3+1",
    _stride,
    "EXPR",
    "k**3+1",
)
_OFFSETS = Family("offsets", "exactly these distances back, such as 1,2,5", _offsets, "LIST", "1,2,5")

_EXPLICIT = Family(
    "explicit",
    "a table of reads as `resolvent.explicit` makes it, in the form that files hold",
    lambda content: Explicit(Table.parse(content)),
    "TABLE",
    "eNpjYYAARiyYCYgBAPgADA",
)
_BINOMIAL = Family(
    "binomial",
    "s positions held, with the fewest hops that this allows at every length; `s,lazy` keeps them until replaced",
    _binomial,
    "s",
    "16",
    claim="no pattern that holds s positions has fewer hops at any length (docs/theory.md)",
)
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _ATTENTION,
        _LOCAL,
        _FIRST_ORDER,
        _ORDER,
        _DENSE,
        _EXPONENTIAL,
        _QUADRATIC,
        _STRIDE,
        _OFFSETS,
        _EXPLICIT,
        _BINOMIAL,
        *PUBLISHED,
    )
}
