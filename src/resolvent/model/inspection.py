"""A model looked at while it reads a text: plain values, ready to be tabulated and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resolvent.coefficients import Weights
from resolvent.model.diagnostics import LayerDiagnostics, diagnose, layer_weights
from resolvent.model.language_model import LanguageModel

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class View:
    """Diagnostics of every layer, and the matrices of one head."""

    layers: list[LayerDiagnostics]
    weights: Weights
    head: int  # among those of `weights`
    spectrum: list[float]
    tokens: list[str]
    title: str

    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """A, B and T of the head."""
        a, b, t = (m[0, self.head].double().numpy() for m in (*self.weights.matrices(), self.weights.transfer()))
        return a, b, t


def inspect(checkpoint: str | Path, text: str | list[int], layer: int = 0, head: int = 0) -> View:
    """Load a model and have it read a text (as bytes, for a vocabulary of 256) or token numbers."""
    model = LanguageModel.load(checkpoint)
    vocabulary, count = model.config.vocab_size, model.config.layers
    if isinstance(text, str):
        if vocabulary != 256:
            raise ValueError(f"a text is read as bytes, and this model has {vocabulary:,} tokens: give token numbers.")
        numbers = list(text.encode())
        shown = [chr(byte) if 33 <= byte < 127 else "␣" if byte == 32 else f"{byte:02x}" for byte in numbers]
    else:
        numbers, shown = text, [str(token) for token in text]
    if not numbers:
        raise ValueError("expected a text of at least one token, got none.")
    if not 0 <= layer < count:
        raise ValueError(f"expected a layer from 0 to {count - 1}, got {layer}.")
    tokens = torch.tensor([numbers])
    groups = layer_weights(model, tokens)[layer]
    heads = sum(group.heads for group in groups)
    if not 0 <= head < heads:
        raise ValueError(f"expected a head from 0 to {heads - 1}, got {head}.")
    first = head
    for weights in groups:
        if first < weights.heads:
            break
        first -= weights.heads
    spectrum = weights.hop_spectrum(12)[0, first].tolist()
    own = model.mixers[layer].layer
    spelled = own.patterns[head] if head < len(own.patterns) else own.patterns[0]
    return View(
        diagnose(model, tokens), weights, first, spectrum, shown, f"layer {layer}, head {head}: {spelled}, {own.rule}"
    )
