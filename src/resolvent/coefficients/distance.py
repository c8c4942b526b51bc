"""Coefficients that depend on the distance alone: nothing about the tokens decides who is heard, only how far away.

They run through the same operator, on queries and keys that are the same for every token but for their position:

    toeplitz   constant learned queries and keys, turned by their positions: any even or odd mixture of waves in i - j
    decay      score λ·j, which a softmax turns into exp(-λ(i-j)) / Σ: positions are spelled in three digits of base
               256, each exact in half precision. The score itself is summed in float32: weights are right to about
               1e-7·λ·j, which is 1e-3 after a million tokens for a head that forgets within a hundred
    constant   no score at all: the mean of what is read
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from resolvent.coefficients.grouped import GroupedCoefficients
from resolvent.coefficients.layer import Layer
from resolvent.coefficients.positions import Positions, digits
from resolvent.coefficients.rope import rope
from resolvent.ops.inputs import BothSides
from resolvent.rules.distance import DIGITS, Distance
from resolvent.rules.rope import Rope


@final
class DistanceCoefficients(GroupedCoefficients):
    """Scores from positions. Few parameters: two vectors (toeplitz) or one number (decay) per head and matrix."""

    no_weight_decay = ("vectors",)

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Distance)
        self.shape, self.key_dim = layer.rule.shape, layer.rule.key_dim(layer.head_dim)
        self.scale = float(layer.head_dim**-0.5) if self.shape == "toeplitz" else 256.0
        sides = {"a": any(g.needs.a for g in self.groups), "b": any(g.needs.b for g in self.groups)}
        self.sides = [side for side, used in sides.items() if used]
        self.vectors = nn.ParameterDict()
        for side in self.sides:
            if self.shape == "toeplitz":
                self.vectors[f"q{side}"] = nn.Parameter(torch.empty(layer.heads, layer.head_dim))
                self.vectors[f"k{side}"] = nn.Parameter(torch.empty(layer.kv_heads, layer.head_dim))
            elif self.shape == "decay":
                self.vectors[f"log_rate_{side}"] = nn.Parameter(torch.empty(layer.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Waves at random; or RetNet's rates: heads forget the slower the later they come."""
        for parameter in self.vectors.values():
            if self.shape == "toeplitz":
                nn.init.normal_(parameter)
            else:
                with torch.no_grad():
                    parameter.copy_((-torch.log1p(-(2.0 ** -torch.linspace(3, 8, len(parameter))))).log())

    def pairs(self, u: Tensor, positions: Positions, dtype: torch.dtype) -> Iterator[BothSides]:
        vectors = self._queries_and_keys(u, positions, dtype)
        for group in self.groups:
            a = (vectors["qa"][:, group.heads], vectors["ka"][:, group.shared]) if group.needs.a else None
            b = (vectors["qb"][:, group.heads], vectors["kb"][:, group.shared]) if group.needs.b else None
            yield a, b

    def _queries_and_keys(self, u: Tensor, positions: Positions, dtype: torch.dtype) -> dict[str, Tensor]:
        batch, n = u.shape[:2]
        vectors: dict[str, Tensor] = {}
        for side in self.sides:
            if self.shape == "toeplitz":
                for name in (f"q{side}", f"k{side}"):
                    constant = self.vectors[name].to(dtype).expand(1, n, -1, -1)
                    vectors[name] = rope(constant, positions, self.layer.rotation or Rope())
            else:
                decays = self.shape == "decay"
                padding = (0, DIGITS - 3)  # to whole vectors; queries and scale give each digit its worth
                spelled = pad(digits(positions.ids, dtype), padding) if decays else u.new_zeros(DIGITS, dtype=dtype)
                rates = self.vectors[f"log_rate_{side}"].exp() if decays else u.new_ones(1)
                worth = torch.tensor([1 / 256, 1, 256] + [0] * (DIGITS - 3), dtype=dtype, device=u.device)
                vectors[f"k{side}"] = spelled[..., None, :] if decays else spelled
                vectors[f"q{side}"] = rates.to(dtype)[:, None] * worth
        heads = {"q": self.layer.heads, "k": self.layer.kv_heads}
        return {name: t.expand(batch, n, heads[name[0]], self.key_dim).transpose(1, 2) for name, t in vectors.items()}
