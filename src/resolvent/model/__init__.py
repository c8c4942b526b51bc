"""Language models in GPT-2's shape with any mixer in each layer."""

from resolvent.model.config import PRESETS, TRAINING, ModelConfig, Training, preset
from resolvent.model.diagnostics import LayerDiagnostics, diagnose, layer_weights, watch_gates
from resolvent.model.language_model import LanguageModel
from resolvent.model.profile import StackProfile

__all__ = [
    "PRESETS",
    "TRAINING",
    "LanguageModel",
    "LayerDiagnostics",
    "ModelConfig",
    "StackProfile",
    "Training",
    "diagnose",
    "layer_weights",
    "preset",
    "watch_gates",
]
