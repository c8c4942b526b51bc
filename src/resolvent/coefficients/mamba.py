"""Mamba's rule for a first-order recurrence: a step Δ per token and channel, `state` decays for each channel.

    h_t[c, s] = exp(Δ_t[c] a[c, s]) h_{t-1}[c, s] + Δ_t[c] b_t[s] x_t[c],   y_t[c] = Σ_s c_t[s] h_t[c, s]

As decays differ from channel to channel, all N × channels × state numbers are written out in training. (Mamba-2's rule,
with one decay for the channels of a head, needs no more than a matrix for each chunk of tokens.) Options put 1 - B, of
each state, in the place of Δ, ones in that of b and c, and add d[c] x_t[c] to the output.

Mamba-2's rule for a first-order recurrence: a step Δ per token and head, B = exp(Δa), A = Δ, an expanded state.

    S_t = exp(Δ_t a) S_{t-1} + Δ_t b_t x_t^T,   y_t = c_t S_t

The state of a head is a matrix: b writes into it and c reads it, which first-order recurrences without it lack. Options
put 1 - B in the place of Δ, ones in that of b and c, and add d x_t to the output. With the first two, and one state,
this is the gated softmax at first order: B = exp(Δa) is its gate g, and A = 1 - g.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from resolvent.coefficients.gates import (
    at_least_float32,
    initial_steps,
    initial_steps_and_rates,
    inverse_softplus,
    steps,
)
from resolvent.coefficients.layer import CacheMemory, CoefficientModule, Layer
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.states import advance, expand_heads, only_stage, scan_state, zero_padding
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, ScanState, expanded_scan, scan
from resolvent.ops.precision import without_autocast
from resolvent.rules.mamba import Mamba1, Mamba2

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


class Mamba2Coefficients(CoefficientModule):
    """Δ, b and c from the layer's input; a is learned. No output gate: it belongs to Mamba's block."""

    no_weight_decay = ("weight",)

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Mamba2)
        self.rule, self.pattern = layer.rule, only_stage(layer)
        if layer.heads % self.rule.groups:
            raise ValueError(f"expected groups to divide the {layer.heads} heads, got {self.rule.groups}.")
        self.weight = nn.Parameter(torch.empty(layer.heads, layer.dim))
        self.step = nn.Parameter(torch.empty(layer.heads))
        self.log_rate = nn.Parameter(torch.empty(layer.heads))
        token = self.rule.vectors == "token"
        self.write_read = nn.Linear(layer.dim, 2 * self.rule.groups * self.rule.state, layer.bias) if token else None
        self.skip = nn.Parameter(torch.empty(layer.heads)) if self.rule.skip else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.init_weights(0.02)

    def init_weights(self, std: float) -> None:
        """Mamba-2's (steps log-uniform, rates uniform), or one decay for all heads."""
        nn.init.normal_(self.weight, std=std)
        with torch.no_grad():
            step, rate = initial_steps_and_rates(self.step, self.rule.initial_decay)
            self.step.copy_(inverse_softplus(step))
            self.log_rate.copy_(rate.log())
        if self.skip is not None:
            nn.init.ones_(self.skip)

    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        alpha, log_decay = self._coefficients(u, positions)
        write, read = self._vectors(u, x)
        write = alpha.to(write.dtype)[..., None] * write
        write, read = zero_padding(positions, write), zero_padding(positions, read)
        log_decay = zero_padding(positions, log_decay[..., None])[..., 0]
        begins = positions.begins if positions.sequences.packed else None
        state = None if cache is None else scan_state(cache).tensors["memory"]
        values = zero_padding(positions, expand_heads(x, self.layer))
        y, state = expanded_scan(values, write, read, log_decay, state, begins)
        if cache is not None:
            advance(scan_state(cache), positions, u.shape[1], memory=state)
        if self.skip is not None:
            y = y + self.skip.to(y.dtype)[:, None, None] * values
        return zero_padding(positions, y)

    def _vectors(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """What writes and what reads: (B, heads, N, state), or with one head for all."""
        if self.write_read is None:
            ones = x.new_ones((u.shape[0], self.layer.heads, u.shape[1], 1))
            return ones, ones
        vectors = self.write_read(u).unflatten(-1, (2, self.rule.groups, self.rule.state))
        write, read = (v.transpose(1, 2) for v in vectors.unbind(2))  # (B, groups, N, state)
        if self.rule.groups > 1:
            write, read = (v.repeat_interleave(self.layer.heads // self.rule.groups, 1) for v in (write, read))
        return write, read

    def _coefficients(self, u: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """A and the logarithm of B, (B, heads, N)."""
        delta = steps(u, self.weight, self.step)
        log_decay = -delta * at_least_float32(self.log_rate).exp()[:, None]
        if self.rule.input == "step":
            return delta, log_decay
        begins = positions.begins if positions.begins.ndim == 1 else positions.begins[:, None]
        return -torch.expm1(log_decay).masked_fill(begins, -1), log_decay  # the first token goes on from nothing

    def make_cache(self, memory: CacheMemory) -> Cache:
        dtype = torch.promote_types(memory.dtype, torch.float32)
        shape = (memory.batch, self.layer.heads, self.rule.state, self.layer.head_dim)
        return ScanState({"memory": torch.zeros(shape, dtype=dtype, device=memory.device)})

    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        """A and B of the state's recurrence, before b writes and c reads."""
        alpha, log_decay = self._coefficients(u, positions)
        yield Weights(alpha[..., None], log_decay.exp()[..., None][..., : u.shape[1] - 1], self.pattern, self.pattern)
