"""Mamba's rule for a first-order recurrence: a step Δ per token and channel, `state` decays for each channel.

    h_t[c, s] = exp(Δ_t[c] a[c, s]) h_{t-1}[c, s] + Δ_t[c] b_t[s] x_t[c],   y_t[c] = Σ_s c_t[s] h_t[c, s]

As decays differ from channel to channel, all N × channels × state numbers are written out in training. (Mamba-2's rule,
with one decay for the channels of a head, needs no more than a matrix for each chunk of tokens.) Options put 1 - B, of
each state, in the place of Δ, ones in that of b and c, and add d[c] x_t[c] to the output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from resolvent.coefficients.gates import at_least_float32, initial_steps, inverse_softplus
from resolvent.coefficients.layer import CacheMemory, CoefficientModule, Layer
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.states import advance, expand_heads, only_stage, scan_state
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, ScanState, scan
from resolvent.ops.precision import without_autocast
from resolvent.rules.mamba import Mamba1

_REDUCTION = 16  # steps come from dim / 16 numbers, as Mamba's do


class Mamba1Coefficients(CoefficientModule):
    """Δ, b and c from the layer's input; a is learned. No output gate: it belongs to Mamba's block."""

    no_weight_decay = ("log_rate",)

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Mamba1)
        self.rule, self.pattern = layer.rule, only_stage(layer)
        self.channels, self.rank = layer.heads * layer.head_dim, math.ceil(layer.dim / _REDUCTION)
        vectors = 2 * self.rule.state if self.rule.vectors == "token" else 0
        self.project = nn.Linear(layer.dim, self.rank + vectors, bias=False)
        self.weight = nn.Parameter(torch.empty(self.channels, self.rank))
        self.step = nn.Parameter(torch.empty(self.channels))
        self.log_rate = nn.Parameter(torch.empty(self.channels, self.rule.state))
        self.skip = nn.Parameter(torch.empty(self.channels)) if self.rule.skip else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Mamba's: steps log-uniform, or such that the first state decays as the rule says; rates 1, 2, … state."""
        start, bound = self.rule.initial_decay, self.rank**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        with torch.no_grad():
            step = initial_steps(self.step) if start is None else torch.full_like(self.step, -math.log(start))
            self.step.copy_(inverse_softplus(step))
            self.log_rate.copy_(torch.arange(1, self.rule.state + 1).log().expand_as(self.log_rate))
        if self.skip is not None:
            nn.init.ones_(self.skip)

    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        alpha, write, read, decay = self._coefficients(u, positions)
        values = expand_heads(x, self.layer).transpose(1, 2).flatten(2).to(alpha.dtype)
        outside = None if positions.mask is None else ~positions.mask[..., None]
        if outside is not None:
            values = values.masked_fill(outside, 0)
        driven = alpha * values[..., None] * write[..., None, :]  # (B, N, channels, state)
        if positions.sequences.packed:
            decay = decay.masked_fill(positions.begins[:, None, None], 0)
        if outside is not None:  # padding neither writes nor fades
            read = read.masked_fill(outside, 0)
            driven, decay = driven.masked_fill(outside[..., None], 0), decay.masked_fill(outside[..., None], 1)
        before = None if cache is None else scan_state(cache).tensors["memory"].flatten(1)
        states = scan(decay.flatten(2), driven.flatten(2), before).unflatten(-1, (self.channels, -1))
        if cache is not None:
            advance(scan_state(cache), positions, u.shape[1], memory=states[:, -1])
        y = (states @ read[..., None])[..., 0]
        if self.skip is not None:
            y = y + at_least_float32(self.skip) * values
        result: Tensor = y.to(x.dtype).unflatten(-1, (self.layer.heads, -1)).transpose(1, 2)
        return result

    def _coefficients(self, u: Tensor, positions: Positions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A (B, N, channels, state or 1), b and c (B, N, state), B (B, N, channels, state), in float32 or better."""
        with without_autocast(u.device.type):  # what sets decays is never in half precision
            u = at_least_float32(u)
            projected = linear(u, self.project.weight.to(u.dtype))
            low, vectors = projected[..., : self.rank], projected[..., self.rank :]
            if self.rule.vectors == "ones":
                vectors = projected.new_ones((*u.shape[:2], 2))
            write, read = vectors.chunk(2, -1)
            delta = softplus(linear(low, self.weight.to(low.dtype), self.step.to(low.dtype)))[..., None]
            log_decay = -delta * at_least_float32(self.log_rate).exp()
            alpha = delta
            if self.rule.input == "complement":  # the first token has nothing to go on from: B is 0 there
                alpha = -torch.expm1(log_decay).masked_fill(positions.begins[..., None, None], -1)
        return alpha, write, read, log_decay.exp()

    def make_cache(self, memory: CacheMemory) -> Cache:
        dtype = torch.promote_types(memory.dtype, torch.float32)
        shape = (memory.batch, self.channels, self.rule.state)
        return ScanState({"memory": torch.zeros(shape, dtype=dtype, device=memory.device)})

    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        """A and B of the states' recurrences, before b writes and c reads: every state of a channel as a head."""
        alpha, _, _, decay = self._coefficients(u, positions)
        alpha, beta = (t.flatten(2).transpose(1, 2)[..., None] for t in (alpha.expand_as(decay), decay))
        yield Weights(alpha, beta[..., : u.shape[1] - 1], self.pattern, self.pattern)
