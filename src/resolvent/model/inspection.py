"""A model inspected while it reads tokens: plain values, ready to be tabulated and drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from resolvent.coefficients import Weights
from resolvent.model.diagnostics import LayerDiagnostics, diagnose, layer_weights
from resolvent.model.language_model import LanguageModel

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Inspection:
    """Diagnostics of every layer, and the matrices of one head."""

    layers: list[LayerDiagnostics]
    weights: Weights
    head: int  # among those of `weights`
    spectrum: list[float]
    title: str

    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """A, B and T of the head."""
        a, b, t = (m[0, self.head].double().numpy() for m in (*self.weights.matrices(), self.weights.transfer()))
        return a, b, t


def inspect(model: LanguageModel, tokens: list[int], layer: int = 0, head: int = 0) -> Inspection:
    """Have a model read tokens, and write out what one of its heads does."""
    if not tokens:
        raise ValueError("expected at least one token, got none.")
    if not 0 <= layer < model.config.layers:
        raise ValueError(f"expected a layer from 0 to {model.config.layers - 1}, got {layer}.")
    batch = torch.tensor([tokens], device=model.device)
    weights, index = _weights_of_head(layer_weights(model, batch)[layer], head)
    spectrum = weights.hop_spectrum(12)[0, index].tolist()
    shape = model.mixers[layer].layer
    pattern = shape.patterns[head] if head < len(shape.patterns) else shape.patterns[0]
    title = f"layer {layer}, head {head}: {pattern}, {shape.rule}"
    return Inspection(diagnose(model, batch), weights, index, spectrum, title)


def _weights_of_head(groups: list[Weights], head: int) -> tuple[Weights, int]:
    """The group that a head is in, and its number there."""
    heads = sum(group.heads for group in groups)
    if not 0 <= head < heads:
        raise ValueError(f"expected a head from 0 to {heads - 1}, got {head}.")
    index = head
    for weights in groups:
        if index < weights.heads:
            break
        index -= weights.heads
    return weights, index
