"""Parse the spelling of a pattern, which is the same in Python, on the command line, in configs and in saved models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from resolvent.errors import PatternError, closest, shortened
from resolvent.patterns.explicit import Explicit
from resolvent.patterns.families import FAMILIES
from resolvent.patterns.pair import pair as join
from resolvent.patterns.pattern import Direct, Pattern
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Formula, FunctionStrides, Listed, check_first_values
from resolvent.patterns.table import reads_of
from resolvent.patterns.translation_invariant import TranslationInvariant

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
_SLASH = re.compile(r"(?<!/)/(?!/)")  # between A and B; strides have //, and a division by mistake is no pair


_SHORT = 4096  # characters of a spelling that is not a table
_SHOWN = 48  # characters of it in messages

PatternLike = str | Pattern | Callable[[int], int]


def pattern(spec: PatternLike) -> Pattern:
    """Make a pattern from its spelling, or from a function of k.

    Args:
        spec: A spelling such as `"exponential+cache"` (`resolvent analyze --families` lists them), two of them as
            `"A/B"` where A and B read different positions, a strictly increasing function from k = 0, 1, … to the k-th
            stride, or a pattern, which is returned unchanged.

    Returns:
        The pattern: a frozen, hashable value. `str(pattern)` is its spelling.

    >>> pattern("stride:k**3+1+cache").sources(30)
    array([20, 27, 28, 29])
    >>> pattern(lambda k: 3**k).sources(30)
    array([ 3, 21, 27, 29])
    >>> print(pattern("local:3/first-order").draw(4))
    local:3/first-order, 4 tokens: ■ A and B, □ A only, · not read
    □
    ■ □
    □ ■ □
    · □ ■ □
    """
    if isinstance(spec, Pattern):
        return spec
    if callable(spec):
        return strided(spec)
    if not isinstance(spec, str):
        raise PatternError(f"expected a pattern, its name or a function of k, got {type(spec).__name__}. {_menu()}")
    return _read(spec) if len(spec) <= _SHORT else _read_long(spec)


as_pattern = pattern  # for functions with an argument named pattern


@lru_cache(maxsize=256)  # decoding may parse a spelling per token; the pattern's cached results are then kept, too
def _read(spec: str) -> Pattern:
    text = spec.strip()
    if match := _REPR.fullmatch(text):
        text = match[1]
    sides = [side.strip() for side in _SLASH.split(text)]
    if len(sides) == 2 and sides[0].startswith("stride:") and sides[1].partition(":")[0] not in _names():
        return _stage(text, spec)  # which says how a division is written
    if len(sides) > 2:
        raise PatternError(
            f"{shortened(spec)} has {len(sides)} sides: expected one pattern, or 'A/B' with one for each matrix."
        )
    if not all(sides) and len(sides) == 2:
        raise PatternError(f"{shortened(spec)} has one side: expected 'A/B', for example 'attention/first-order'.")
    patterns = [_stage(side, spec) for side in sides]
    return patterns[0] if len(patterns) == 1 else join(*patterns)


_read_long = lru_cache(maxsize=8)(_read.__wrapped__)  # tables of megabytes


def _names() -> set[str]:
    """What a spelling starts with, before a colon: families, also with modifiers."""
    return {name + end for name in FAMILIES for end in ("", *MODIFIERS)}


def _stage(text: str, spec: str) -> Stage:
    suffixes = _SUFFIXES.search(text)
    assert suffixes is not None  # the expression also matches nothing
    modifiers = set(suffixes[1].split("+")[1:])
    plain = _family(text[: suffixes.start()], text, spec)
    direct: Direct = "diagonal" if "diagonal" in modifiers else plain.direct
    recurrent = plain.recurrent and "attention" not in modifiers
    if direct == "diagonal" and not recurrent:
        raise PatternError(f"{shortened(text)} reads nothing but itself: without feedback, A must have its offsets.")
    modified = plain.modified(direct, recurrent)
    return modified.cache_efficient() if "cache" in modifiers else modified


def pair(a: PatternLike, b: PatternLike) -> Pattern:
    """The pattern with the A of the one and the B of the other. Same as `pattern("A/B")`.

    Args:
        a: What A reads: a pattern, its spelling or a function of k.
        b: What B reads.

    Returns:
        The pattern, which is of one stage where that says it: `pair("dense", "dense")` is `dense`.

    >>> pair("attention", "first-order")
    pattern('attention/first-order')
    """
    return join(pattern(a), pattern(b))


def explicit(rows: object, n: int | str | None = None, *, direct: Direct = "all", recurrent: bool = True) -> Pattern:
    """Make a pattern from the positions that each token reads.

    Args:
        rows: A function from a token i to the earlier positions that it reads; compressed rows `(starts, positions)`
            with token i reading `positions[starts[i]:starts[i + 1]]`; or a boolean mask of shape (n, n), True where
            token i (row) reads position j (column). A token always sees itself: the diagonal of a mask is ignored.
        n: Number of tokens. A function with n is listed once, so that files can hold the pattern and its cache is as
            small as it can be; without n it has no end, and its cache keeps everything.
        direct: "all" if A reads these positions, "diagonal" if A is diagonal.
        recurrent: Whether B reads them.

    Returns:
        The pattern. Equal tables make equal patterns.

    >>> explicit(lambda i: [i // 2] if i else [], n=8).sources(7)
    array([3])
    """
    if direct == "diagonal" and not recurrent:
        raise PatternError("the pattern reads nothing but itself: without feedback, A must have its offsets.")
    return Explicit(reads_of(rows, n), direct, recurrent)


def window(w: int) -> Pattern:
    """Local attention: each token reads the last w positions, itself included; no feedback. Same as `local:w`.

    Args:
        w: Window size ≥ 1.

    Returns:
        The pattern.

    >>> window(4).sources(10)
    array([7, 8, 9])
    """
    return pattern(f"local:{w}")


def exponential() -> Pattern:
    """Strides 1, 2, 4, 8, …: O(log n) reads per token. Same as `pattern("exponential")`.

    Returns:
        The pattern.

    >>> exponential().sources(20)
    array([ 4, 12, 16, 18, 19])
    """
    return pattern("exponential")


def quadratic() -> Pattern:
    """Strides k²+1 = 1, 2, 5, 10, …: O(√n) reads per token. Same as `pattern("quadratic")`.

    Returns:
        The pattern.

    >>> quadratic().sources(20)
    array([ 3, 10, 15, 18, 19])
    """
    return pattern("quadratic")


def strided(strides: str | Callable[[int], int] | Iterable[int]) -> Pattern:
    """Make a recurrent pattern from its strides.

    Args:
        strides: An expression in k such as `"k**3+1"`, a function of k, or a list. Strictly increasing, ≥ 1.

    Returns:
        The pattern in which token i reads the positions i - stride ≥ 0.

    >>> strided([1, 4, 9]).sources(10)
    array([1, 6, 9])
    """
    if isinstance(strides, str):
        return TranslationInvariant(Formula.parse(strides))
    if callable(strides):
        generated = FunctionStrides(strides)
        check_first_values(generated, generated.spelling)
        return TranslationInvariant(generated)
    return TranslationInvariant(Listed(tuple(int(value) for value in strides)))


def _family(text: str, side: str, spec: str) -> Stage:
    name, colon, argument = text.partition(":")
    family = FAMILIES.get(name)
    if family is None or (bool(colon) != bool(family.argument) and (colon or not family.default)):
        within = "" if side == spec.strip() else f" in {shortened(spec)}"
        raise PatternError(f"unknown pattern {shortened(side)}{within}.{_suggest(name, side)}")
    return family.make(argument if colon else family.default)


def _suggest(name: str, side: str) -> str:
    if name in FAMILIES:
        family = FAMILIES[name]
        return (
            f" It takes a value, for example '{family.sample}'."
            if family.argument
            else f" '{name}' takes no value after a colon."
        )
    stem, plus, modifier = name.partition("+")
    if plus and stem in FAMILIES and not FAMILIES[stem].argument:
        near = closest(f"+{modifier[:_SHOWN]}", MODIFIERS).replace("'+", f"'{stem}+")
        return f" {shortened(f'+{modifier}')} is not a modifier: expected {' or '.join(MODIFIERS)}.{near}"
    samples = [family.sample for family in FAMILIES.values()] + [name for name, f in FAMILIES.items() if f.default]
    near = closest(side[:_SHOWN], [sample + end for sample in samples for end in ("", *MODIFIERS)])
    return f"{near} {_menu()}"


def _menu() -> str:
    names = ", ".join(family.signature for family in FAMILIES.values() if not family.source)
    return (
        f"Expected one of {names}, or of 'resolvent analyze --families', with {' or '.join(MODIFIERS)} "
        "after it; or two as A/B."
    )
