"""Patterns: which past positions each token reads. Frozen, hashable values made of integers; `print` draws them."""

from resolvent.patterns.cache_efficient import CacheEfficient
from resolvent.patterns.explicit import Explicit
from resolvent.patterns.families import FAMILIES
from resolvent.patterns.family import Family
from resolvent.patterns.lifetimes import Lifetimes
from resolvent.patterns.pair import Pair
from resolvent.patterns.pattern import Needs, Normalize, Pattern
from resolvent.patterns.spelling import (
    MODIFIERS,
    PAPER_STRUCTURES,
    PatternLike,
    as_pattern,
    explicit,
    exponential,
    pair,
    pattern,
    quadratic,
    strided,
    window,
)
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Strides
from resolvent.patterns.translation_invariant import TranslationInvariant

__all__ = [
    "FAMILIES",
    "MODIFIERS",
    "PAPER_STRUCTURES",
    "CacheEfficient",
    "Explicit",
    "Family",
    "Lifetimes",
    "Needs",
    "Normalize",
    "Pair",
    "Pattern",
    "PatternLike",
    "Stage",
    "Strides",
    "TranslationInvariant",
    "as_pattern",
    "explicit",
    "exponential",
    "pair",
    "pattern",
    "quadratic",
    "strided",
    "window",
]
