"""Mamba's rule for a first-order recurrence: a step Δ per token and head, B = exp(Δa), A = Δ, an expanded state.

    S_t = exp(Δ_t a) S_{t-1} + Δ_t b_t x_t^T,   y_t = c_t S_t

The state of a head is a matrix: b writes into it and c reads it, which first-order recurrences without it lack.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import Mamba
from resolvent.coefficients.gates import at_least_float32, inverse_softplus, start_of_steps, steps
from resolvent.coefficients.layer import CoefficientModule, Layer
from resolvent.coefficients.place import Place
from resolvent.coefficients.states import advance, expand_heads, of_new_tokens, only_pattern
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, State, expanded_scan


class MambaCoefficients(CoefficientModule):
    """Δ, b and c from the layer's input; a is learned. No convolution and no skip: those belong to Mamba's block."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Mamba)
        self.rule, self.pattern = layer.rule, only_pattern(layer)
        if layer.heads % self.rule.groups:
            raise ValueError(f"expected groups to divide the {layer.heads} heads, got {self.rule.groups}.")
        self.weight = nn.Parameter(torch.empty(layer.heads, layer.dim))
        self.step = nn.Parameter(torch.empty(layer.heads))
        self.log_rate = nn.Parameter(torch.empty(layer.heads))
        self.write_read = nn.Linear(layer.dim, 2 * self.rule.groups * self.rule.state, layer.bias)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        with torch.no_grad():
            self.step.copy_(inverse_softplus(start_of_steps(self.step)))
            self.log_rate.copy_((torch.rand_like(self.step) * 15 + 1).log())

    def forward(self, u: Tensor, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        delta, log_decay = self._steps(u)
        vectors = self.write_read(u).unflatten(-1, (2, self.rule.groups, self.rule.state))
        write, read = (v.transpose(1, 2) for v in vectors.unbind(2))  # (B, groups, N, state)
        if self.rule.groups > 1:
            write, read = (v.repeat_interleave(self.layer.heads // self.rule.groups, 1) for v in (write, read))
        write = delta.to(write.dtype)[..., None] * write
        write, read = of_new_tokens(place, write), of_new_tokens(place, read)
        log_decay = of_new_tokens(place, log_decay[..., None])[..., 0]
        begins = place.begins if place.packed else None
        state = None if cache is None else cache.parts["memory"]
        y, state = expanded_scan(
            of_new_tokens(place, expand_heads(x, self.layer)), write, read, log_decay, state, begins
        )
        if cache is not None:
            advance(cache, place, u.shape[1], memory=state)
        return of_new_tokens(place, y)

    def _steps(self, u: Tensor) -> tuple[Tensor, Tensor]:
        delta = steps(u, self.weight, self.step)
        return delta, -delta * at_least_float32(self.log_rate).exp()[:, None]

    def make_cache(self, batch: int, tokens: int | None, dtype: torch.dtype, device: torch.device) -> Cache:  # noqa: ARG002
        kept = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.layer.heads, self.rule.state, self.layer.head_dim)
        return State({"memory": torch.zeros(shape, dtype=kept, device=device)})

    def weights(self, u: Tensor, place: Place) -> Iterator[Weights]:  # noqa: ARG002
        """A and B of the state's recurrence, before b writes and c reads."""
        delta, log_decay = self._steps(u)
        yield Weights(delta[..., None], log_decay.exp()[..., None][..., : u.shape[1] - 1], self.pattern, self.pattern)
