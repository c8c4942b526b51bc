"""Gates: how much of each row comes from feedback. One number per head, and per token where it is learned so."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from resolvent.analysis.coefficients import parse_gate


def make_gate(spec: str, dim: int, heads: int) -> nn.Module:
    """The module for a spelling such as `mamba`, `half`, `scalar@0.5` or `0.5`."""
    kind, start = parse_gate(spec)
    if kind == "constant":
        return ConstantGate(heads, start or 0.0)
    if kind == "scalar":
        return ScalarGate(heads, start or 0.5)
    return TokenGate(dim, heads, start)


# Mamba-2's gate, g = exp(-softplus(w·u + step) · exp(log_rate)). Its start: softplus(step) log-uniform in
# [0.001, 0.1], exp(log_rate) uniform in [1, 16], so that g lies between 0.2 and 1, most of it close to 1.
class TokenGate(nn.Module):
    """g = exp(-softplus(w·u + step) · rate), for each token and head; `start` is g at w = 0, or None for Mamba-2's."""

    def __init__(self, dim: int, heads: int, start: float | None = None) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(heads, dim))
        self.step = nn.Parameter(torch.empty(heads))
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        with torch.no_grad():
            if self.start is None:
                step, rate = start_of_steps(self.step), torch.rand_like(self.step) * 15 + 1
            else:
                step, rate = torch.full_like(self.step, -math.log(self.start)), torch.ones_like(self.step)
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


def steps(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Softplus(w·u + bias) as (B, heads, N): Mamba's Δ. Never in half precision: it decides how fast memory fades."""
    with torch.autocast(u.device.type, enabled=False):
        u = at_least_float32(u)
        return softplus((linear(u, weight.to(u.dtype)) + bias.to(u.dtype)).transpose(1, 2).contiguous())


def start_of_steps(like: Tensor) -> Tensor:
    """Mamba-2's start of Δ: log-uniform in [0.001, 0.1], at least 0.0001."""
    low, high = math.log(1e-3), math.log(0.1)
    return (torch.rand_like(like) * (high - low) + low).exp().clamp(min=1e-4)


def inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))


def at_least_float32(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()
