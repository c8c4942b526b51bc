"""Mamba-2's rule for a first-order recurrence: a step Δ per token and head, B = exp(Δa), A = Δ, an expanded state.

    S_t = exp(Δ_t a) S_{t-1} + Δ_t b_t x_t^T,   y_t = c_t S_t

The state of a head is a matrix: b writes into it and c reads it, which first-order recurrences without it lack. Options
put 1 - B in the place of Δ, ones in that of b and c, and add d x_t to the output. With the first two, and one state,
this is the gated softmax at first order: B = exp(Δa) is its gate g, and A = 1 - g.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from resolvent.coefficients.gates import at_least_float32, initial_steps_and_rates, inverse_softplus, steps
from resolvent.coefficients.layer import CacheMemory, CoefficientModule, Layer
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.states import advance, expand_heads, only_stage, scan_state, zero_padding
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, ScanState, expanded_scan
from resolvent.rules.mamba import Mamba2


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
