"""Causal token mixers y = (I - B)^-1 A x, chosen by the geometry of what each token may read."""

from importlib import import_module
from typing import TYPE_CHECKING

from resolvent.analysis import (
    Comparison,
    Profile,
    Routing,
    analyze,
    compare,
    congestion,
    cost,
    hop_matrix,
    hops,
    verify,
)
from resolvent.errors import PatternError
from resolvent.patterns import (
    PAPER_STRUCTURES,
    Pattern,
    explicit,
    exponential,
    pair,
    pattern,
    quadratic,
    strided,
    window,
)

if TYPE_CHECKING:
    from resolvent.coefficients import register_rule
    from resolvent.designer.design import Design, design
    from resolvent.mixer import Mixer
    from resolvent.model import LanguageModel, ModelConfig, diagnose, preset, watch_gates
    from resolvent.ops import DecodeCache, choose_backend, decode_cache, extend, mix, solve

__version__ = "0.1.0"

__all__ = [
    "PAPER_STRUCTURES",
    "Comparison",
    "DecodeCache",
    "Design",
    "LanguageModel",
    "Mixer",
    "ModelConfig",
    "Pattern",
    "PatternError",
    "Profile",
    "Routing",
    "analyze",
    "choose_backend",
    "compare",
    "congestion",
    "cost",
    "decode_cache",
    "design",
    "diagnose",
    "explicit",
    "exponential",
    "extend",
    "hop_matrix",
    "hops",
    "mix",
    "pair",
    "pattern",
    "preset",
    "quadratic",
    "register_rule",
    "solve",
    "strided",
    "verify",
    "watch_gates",
    "window",
]

_LOADED_LATER = (  # all but the designer need torch
    dict.fromkeys(("DecodeCache", "choose_backend", "decode_cache", "extend", "mix", "solve"), "resolvent.ops")
    | {"Mixer": "resolvent.mixer", "register_rule": "resolvent.coefficients"}
    | dict.fromkeys(("Design", "design"), "resolvent.designer")
    | dict.fromkeys(("LanguageModel", "ModelConfig", "diagnose", "preset", "watch_gates"), "resolvent.model")
)


def __getattr__(name: str) -> object:
    """Some names are imported when first used, so that patterns and analysis stay quick to import."""
    if name in _LOADED_LATER:
        return getattr(import_module(_LOADED_LATER[name]), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
