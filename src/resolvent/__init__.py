"""Causal token mixers y = (I - B)^-1 A x, chosen by the geometry of what each token may read."""

from typing import TYPE_CHECKING, Any

from resolvent.analysis import Profile, Routing, analyze, congestion, cost, hop_matrix, hops, verify
from resolvent.patterns import (
    PAPER_STRUCTURES,
    Pattern,
    PatternError,
    exponential,
    pattern,
    quadratic,
    strided,
    window,
)

if TYPE_CHECKING:
    from resolvent.ops import DecodeCache, choose_backend, extend, mix, solve

__version__ = "0.1.0"

__all__ = [
    "PAPER_STRUCTURES",
    "DecodeCache",
    "Pattern",
    "PatternError",
    "Profile",
    "Routing",
    "analyze",
    "choose_backend",
    "congestion",
    "cost",
    "exponential",
    "extend",
    "hop_matrix",
    "hops",
    "mix",
    "pattern",
    "quadratic",
    "solve",
    "strided",
    "verify",
    "window",
]

_NEEDS_TORCH = dict.fromkeys(("DecodeCache", "choose_backend", "extend", "mix", "solve"), "resolvent.ops")


def __getattr__(name: str) -> Any:
    """Names that need torch are imported when first used, so that patterns and analysis stay quick to import."""
    if name in _NEEDS_TORCH:
        from importlib import import_module

        return getattr(import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
