"""Language models in GPT-2's shape with any mixer in each layer. Only what needs torch loads it."""

from importlib import import_module
from typing import TYPE_CHECKING

from resolvent.model.config import PRESETS, ModelConfig, preset

if TYPE_CHECKING:
    from resolvent.model.diagnostics import LayerDiagnostics, diagnose, layer_weights, watch_gates
    from resolvent.model.language_model import LanguageModel
    from resolvent.model.profile import StackProfile

__all__ = [
    "PRESETS",
    "LanguageModel",
    "LayerDiagnostics",
    "ModelConfig",
    "StackProfile",
    "diagnose",
    "layer_weights",
    "preset",
    "watch_gates",
]

_NEEDS_TORCH = {"LanguageModel": "language_model", "StackProfile": "profile"} | dict.fromkeys(
    ("LayerDiagnostics", "diagnose", "layer_weights", "watch_gates"), "diagnostics"
)


def __getattr__(name: str) -> object:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"resolvent.model.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module 'resolvent.model' has no attribute {name!r}")
