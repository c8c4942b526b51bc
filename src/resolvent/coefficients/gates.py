"""Gates: how much of each row comes from feedback. One number per head, and per token where it is learned so."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from resolvent.ops.precision import without_autocast
from resolvent.rules.rule import parse_gate

_LARGEST_BLEND = 7 / 8


def make_gate(spec: str, dim: int, heads: int) -> nn.Module:
    """The module for a spelling such as `mamba`, `half`, `scalar@0.5` or `0.5`."""
    kind, start = parse_gate(spec)
    if kind == "constant":
        return ConstantGate(heads, start or 0.0)
    if kind == "scalar":
        return ScalarGate(heads, start or 0.5)
    return TokenGate(dim, heads, start)


# Mamba-2's gate, g = exp(-softplus(w·u + step) · exp(log_rate)). Initially softplus(step) is log-uniform in
# [0.001, 0.1], and exp(log_rate) uniform in [1, 16], so that g lies between 0.2 and 1, most of it close to 1.
class TokenGate(nn.Module):
    """A gate g = exp(-softplus(w·u + step) · rate) per token and head; `start` is g at w = 0, None for Mamba-2's."""

    no_weight_decay = ("weight",)

    def __init__(self, dim: int, heads: int, start: float | None = None) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(heads, dim))
        self.step = nn.Parameter(torch.empty(heads))
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.init_weights(0.02)

    def init_weights(self, std: float) -> None:
        """Weights at random, so small that the gate begins at `start`."""
        nn.init.normal_(self.weight, std=std)
        with torch.no_grad():
            step, rate = initial_steps_and_rates(self.step, self.start)
            self.step.copy_(inverse_softplus(step))
            self.log_rate.copy_(rate.log())

    def forward(self, u: Tensor) -> Tensor:
        """(B, N, dim) → (B, heads, N), in float32 or better."""
        return (-steps(u, self.weight, self.step) * at_least_float32(self.log_rate).exp()[:, None]).exp()


class ScalarGate(nn.Module):
    """One learned number per head, the same for every token."""

    def __init__(self, heads: int, start: float = 0.5) -> None:
        super().__init__()
        self.start = start
        self.logit = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, math.log(self.start / (1 - self.start)))

    def forward(self, u: Tensor) -> Tensor:
        gate = at_least_float32(self.logit).sigmoid()
        return gate[None, :, None].expand(u.shape[0], -1, u.shape[1])


class ConstantGate(nn.Module):
    """A fixed number γ, as in ChaCAL; nothing is learned."""

    def __init__(self, heads: int, gamma: float) -> None:
        super().__init__()
        self.heads, self.gamma = heads, gamma

    def forward(self, u: Tensor) -> Tensor:
        dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
        return torch.full((), self.gamma, dtype=dtype, device=u.device).expand(u.shape[0], self.heads, u.shape[1])


class TokenBlend(nn.Module):
    """What of a token is read later: the share of its input, beside its output. One number per token and head.

    Outputs are recovered from blends as y = u + (u - x) ρ / (1 - ρ), which magnifies rounding by 1 / (1 - ρ): as ρ is
    less than 7/8, by 8 at most. It starts in the middle.
    """

    no_weight_decay = ("weight",)

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, dim))
        self.bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.init_weights(0.02)

    def init_weights(self, std: float) -> None:
        nn.init.normal_(self.weight, std=std)
        nn.init.zeros_(self.bias)

    def forward(self, u: Tensor) -> Tensor:
        """(B, N, dim) → (B, heads, N), in float32 or better."""
        with without_autocast(u.device.type):
            u = at_least_float32(u)
            scores = linear(u, self.weight.to(u.dtype), self.bias.to(u.dtype))
            return _LARGEST_BLEND * scores.sigmoid().transpose(1, 2)


def steps(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The steps softplus(w·u + bias), (B, heads, N): Mamba's Δ. Never in half precision: it sets the decay."""
    with without_autocast(u.device.type):
        u = at_least_float32(u)
        return softplus((linear(u, weight.to(u.dtype)) + bias.to(u.dtype)).transpose(1, 2).contiguous())


def initial_steps_and_rates(t: Tensor, start: float | None) -> tuple[Tensor, Tensor]:
    """Initial Δ and -a, shaped as t, with exp(Δa) = start; Mamba-2's if it is None."""
    if start is None:
        return initial_steps(t), torch.rand_like(t) * 15 + 1
    return torch.full_like(t, -math.log(start)), torch.ones_like(t)


def initial_steps(t: Tensor) -> Tensor:
    """Mamba's and Mamba-2's initial Δ: log-uniform in [0.001, 0.1], at least 0.0001."""
    low, high = math.log(1e-3), math.log(0.1)
    return (torch.rand_like(t) * (high - low) + low).exp().clamp(min=1e-4)


def inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))


def at_least_float32(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()
