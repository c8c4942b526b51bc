"""Linear recurrences with gates per channel: every channel is a head of its own with a first-order recurrence.

    mingru    y_t = (1 - z_t) y_{t-1} + z_t x_t                         z = σ(W u)
    griffin   y_t = a_t y_{t-1} + √(1 - a_t²) i_t x_t                   a = exp(-8 softplus(Λ) σ(W u)), i = σ(W' u)

The first token of a sequence has nothing to go on from: there z = 1, and a = 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from resolvent.coefficients.gates import at_least_float32, inverse_softplus
from resolvent.coefficients.layer import CacheMemory, CoefficientModule, Layer
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.states import advance, expand_heads, only_stage, scan_state
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, ScanState, scan
from resolvent.ops.precision import without_autocast
from resolvent.rules.linear import Linear

_SHARPNESS = 8.0  # Griffin's constant


class LinearCoefficients(CoefficientModule):
    """Gates from the layer's input, one per channel."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Linear)
        self.form, self.pattern = layer.rule.form, only_stage(layer)
        self.channels = layer.heads * layer.head_dim
        self.gates = nn.Linear(layer.dim, self.channels * (2 if self.form == "griffin" else 1))
        self.fade = nn.Parameter(torch.empty(self.channels)) if self.form == "griffin" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Griffin's start: a, at an open gate, uniform in [0.9, 0.999]."""
        if self.fade is not None:
            with torch.no_grad():
                a = torch.rand_like(self.fade) * 0.099 + 0.9
                self.fade.copy_(inverse_softplus(-a.log() / _SHARPNESS))

    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        alpha, beta = self._coefficients(u, positions)  # (B, N, channels)
        values = expand_heads(x, self.layer).transpose(1, 2).flatten(2)
        driven = alpha * values.to(alpha.dtype)
        if positions.mask is not None:  # padding neither adds nor fades
            outside = ~positions.mask[..., None]
            driven, beta = driven.masked_fill(outside, 0), beta.masked_fill(outside, 1)
        y = scan(beta, driven, None if cache is None else scan_state(cache).tensors["memory"])
        if cache is not None:
            advance(scan_state(cache), positions, u.shape[1], memory=y[:, -1])
        if positions.mask is not None:
            y = y.masked_fill(~positions.mask[..., None], 0)
        result: Tensor = y.to(x.dtype).unflatten(-1, (self.layer.heads, -1)).transpose(1, 2)
        return result

    def _coefficients(self, u: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """What weighs the input and what the output before, in float32 or better."""
        with without_autocast(u.device.type):
            u = at_least_float32(u)
            gates = linear(u, self.gates.weight.to(u.dtype), self.gates.bias.to(u.dtype)).sigmoid()
            begins = positions.begins[..., None]
            if self.fade is None:
                return gates.masked_fill(begins, 1), (1 - gates).masked_fill(begins, 0)
            open_, drive = gates.chunk(2, -1)
            log_a = -_SHARPNESS * softplus(at_least_float32(self.fade)) * open_
            keep = (-torch.expm1(2 * log_a)).clamp(min=1e-12).sqrt().masked_fill(begins, 1)
            return keep * drive, log_a.exp().masked_fill(begins, 0)

    def make_cache(self, memory: CacheMemory) -> Cache:
        dtype = torch.promote_types(memory.dtype, torch.float32)
        return ScanState({"memory": torch.zeros(memory.batch, self.channels, dtype=dtype, device=memory.device)})

    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        """Every channel as a head."""
        alpha, beta = (t.transpose(1, 2)[..., None] for t in self._coefficients(u, positions))
        yield Weights(alpha, beta[..., : u.shape[1] - 1], self.pattern, self.pattern)
