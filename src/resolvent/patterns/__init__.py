"""WHO reads whom: integers only. Patterns are frozen, hashable values that draw themselves."""

from resolvent.patterns.cache_efficient import CacheEfficient
from resolvent.patterns.errors import PatternError
from resolvent.patterns.pattern import Pattern
from resolvent.patterns.spelling import (
    FAMILIES,
    MODIFIERS,
    PAPER_STRUCTURES,
    exponential,
    pattern,
    quadratic,
    strided,
    window,
)
from resolvent.patterns.strides import Strides
from resolvent.patterns.translation_invariant import TranslationInvariant

__all__ = [
    "FAMILIES",
    "MODIFIERS",
    "PAPER_STRUCTURES",
    "CacheEfficient",
    "Pattern",
    "PatternError",
    "Strides",
    "TranslationInvariant",
    "exponential",
    "pattern",
    "quadratic",
    "strided",
    "window",
]
