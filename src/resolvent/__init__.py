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
    from resolvent.mixer import Mixer
    from resolvent.model import LanguageModel, ModelConfig, diagnose, preset, watch_gates
    from resolvent.ops import DecodeCache, choose_backend, extend, load_cache, mix, solve

__version__ = "0.1.0"

__all__ = [
    "PAPER_STRUCTURES",
    "DecodeCache",
    "LanguageModel",
    "Mixer",
    "ModelConfig",
    "Pattern",
    "PatternError",
    "Profile",
    "Routing",
    "analyze",
    "choose_backend",
    "congestion",
    "cost",
    "diagnose",
    "exponential",
    "extend",
    "hop_matrix",
    "hops",
    "load_cache",
    "mix",
    "pattern",
    "preset",
    "quadratic",
    "solve",
    "strided",
    "verify",
    "watch_gates",
    "window",
]

_NEEDS_TORCH = (
    dict.fromkeys(("DecodeCache", "choose_backend", "extend", "load_cache", "mix", "solve"), "resolvent.ops")
    | {"Mixer": "resolvent.mixer"}
    | dict.fromkeys(("LanguageModel", "ModelConfig", "diagnose", "preset", "watch_gates"), "resolvent.model")
)


def __getattr__(name: str) -> Any:
    """Names that need torch are imported when first used, so that patterns and analysis stay quick to import."""
    if name in _NEEDS_TORCH:
        from importlib import import_module

        return getattr(import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
