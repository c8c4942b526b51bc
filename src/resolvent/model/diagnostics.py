"""What goes on inside: gates, row sums, hops and the norm of (I - B)^-1, layer by layer and head by head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from resolvent.coefficients import Weights
from resolvent.model.language_model import LanguageModel

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GateStatistics:
    """Over tokens and batch, as the gates give them: lists with one number for each head that has feedback."""

    mean: list[float]
    std: list[float]
    min: list[float]
    max: list[float]


@dataclass(frozen=True)
class LayerDiagnostics:
    """One layer on given tokens. Lists have one entry per head (per channel where channels are heads).

    row_sum_drift   the largest |T 1 - 1|: 0 where coefficients are normalized
    resolvent_norm  the largest row sum of |(I - B)^-1|: how much feedback can amplify
    hop_spectrum    the share of T by how often it was fed back: 0, 1, 2, … times; the last entry has all the rest
    """

    layer: int
    patterns: tuple[str, ...]
    rule: str
    gates: GateStatistics | None
    row_sum_drift: list[float]
    resolvent_norm: list[float]
    hop_spectrum: list[list[float]]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


class GateWatch:
    """Sums that `watch_gates` keeps, layer by layer."""

    def __init__(self) -> None:
        self._sums: dict[int, list[Tensor]] = {}

    def _see(self, layer: int, gate: Tensor) -> None:
        g = gate.detach().transpose(0, 1).flatten(1).double()  # (heads, tokens)
        new = torch.stack([torch.full_like(g[:, 0], g.shape[1]), g.sum(1), g.square().sum(1)])
        least, most = g.amin(1), g.amax(1)
        if layer in self._sums:
            sums, low, high = self._sums[layer]
            new, least, most = new + sums, torch.minimum(least, low), torch.maximum(most, high)
        self._sums[layer] = [new, least, most]

    def statistics(self) -> dict[int, GateStatistics]:
        """Of everything seen so far, for each layer that has a gate."""
        statistics = {}
        for layer, (sums, least, most) in self._sums.items():
            count, total, squares = sums
            mean = total / count
            std = (squares / count - mean.square()).clamp(min=0).sqrt()
            statistics[layer] = GateStatistics(mean.tolist(), std.tolist(), least.tolist(), most.tolist())
        return statistics


@contextmanager
def watch_gates(model: LanguageModel) -> Iterator[GateWatch]:
    """Statistics of every gate while the block runs, in training too: a few sums per layer, nothing stored.

    Args:
        model: a language model; its outputs and gradients stay as they are.

    Returns:
        A context manager that gives a `GateWatch`; its `statistics()` are by layer, with one number per head.

    >>> from resolvent import preset
    >>> model = LanguageModel(preset("tiny", pattern="exponential"))
    >>> with watch_gates(model) as watch:
    ...     logits = model(torch.zeros(1, 16, dtype=torch.long))
    >>> len(watch.statistics()[0].mean)  # layer 0, one per head
    4
    """
    watch, handles = GateWatch(), []
    for i, mixer in enumerate(model.mixers):
        gate = getattr(mixer.coefficients, "gate", None)
        if isinstance(gate, nn.Module):
            handles.append(gate.register_forward_hook(lambda _m, _i, g, layer=i: watch._see(layer, g)))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def layer_weights(model: LanguageModel, tokens: Tensor) -> list[list[Weights]]:
    """A and B of every layer for these tokens (B, N), group of heads by group of heads."""
    inputs: list[Tensor] = []
    handles = [
        mixer.coefficients.register_forward_pre_hook(lambda _m, given: inputs.append(given[0]))
        for mixer in model.mixers
    ]
    try:
        model.hidden(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return [mixer.weights(u) for mixer, u in zip(model.mixers, inputs, strict=True)]


@torch.no_grad()
def diagnose(model: LanguageModel, tokens: Tensor, *, hops: int = 16) -> list[LayerDiagnostics]:
    """Gates, row sums, amplification and hops of every layer on these tokens.

    It takes what the patterns cost: no n × n matrix is made for sparse ones.

    Args:
        model: a language model.
        tokens: (B, N) token ids.
        hops: numbers of feedback steps that the spectra distinguish; the last entry has all the rest.

    Returns:
        One `LayerDiagnostics` per layer; its lists have one entry per head.

    >>> from resolvent import preset
    >>> model = LanguageModel(preset("tiny", pattern="exponential"))
    >>> first = diagnose(model, torch.zeros(1, 16, dtype=torch.long))[0]
    >>> first.patterns, max(first.row_sum_drift) < 1e-5
    (('exponential',), True)
    """
    with watch_gates(model) as watch:
        weights = layer_weights(model, tokens)
    gates = watch.statistics()
    diagnostics = []
    for i, (mixer, groups) in enumerate(zip(model.mixers, weights, strict=True)):
        layer = mixer.layer
        drift = [d for w in groups for d in (w.row_sums() - 1).abs().amax((0, 2)).tolist()]
        norms = [d for w in groups for d in w.resolvent_norm().amax(0).tolist()]
        spectra = [d for w in groups for d in w.hop_spectrum(hops).mean(0).tolist()]
        spelled = tuple(dict.fromkeys(map(str, layer.patterns)))
        diagnostics.append(LayerDiagnostics(i, spelled, str(layer.rule), gates.get(i), drift, norms, spectra))
    return diagnostics


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
    heads = sum(group.heads for group in groups)
    if not 0 <= head < heads:
        raise ValueError(f"expected a head from 0 to {heads - 1}, got {head}.")
    index = head
    for weights in groups:
        if index < weights.heads:
            break
        index -= weights.heads
    return weights, index
