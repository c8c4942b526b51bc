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

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import DIGITS, Distance
from resolvent.coefficients.gates import make_gate
from resolvent.coefficients.layer import CoefficientModule, HeadGroup, Layer, join, parts_of
from resolvent.coefficients.place import Place
from resolvent.coefficients.rope import rope
from resolvent.coefficients.softmax import operate, slots
from resolvent.coefficients.weights import Scores, Weights, written_out
from resolvent.ops import Cache

_BASE = 10_000.0


class DistanceCoefficients(CoefficientModule):
    """Scores from positions. Few parameters: two vectors (toeplitz) or one number (decay) per head and matrix."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Distance)
        self.groups = layer.groups()
        self.shape = layer.rule.shape
        self.key_dim = layer.head_dim if self.shape == "toeplitz" else DIGITS
        gates = self.groups[-1].gates.stop
        self.gate = make_gate(layer.rule.gate, layer.dim, gates) if gates else None
        sides = {"a": any(g.run.direct == "all" for g in self.groups), "b": any(g.scores_b for g in self.groups)}
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

    def forward(self, u: Tensor, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        gate = None if self.gate is None else self.gate(u)
        scores = self._scores(x, place)
        outputs = []
        for group, part in zip(self.groups, parts_of(cache, len(self.groups)), strict=True):
            g = None if gate is None or not group.run.recurrent else gate[:, group.gates]
            own = self._of(group, scores)
            outputs.append(operate(x[:, group.shared], own, g, group, self.layer, place, part, scale=self._scale))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    @property
    def _scale(self) -> float:
        return float(self.layer.head_dim**-0.5) if self.shape == "toeplitz" else 256.0

    def _scores(self, x: Tensor, place: Place) -> dict[str, Tensor]:
        """Queries and keys of all heads, (B, heads, N, D')."""
        found = {}
        shape = (x.shape[0], x.shape[2], -1, self.key_dim)
        for side in self.sides:
            if self.shape == "toeplitz":
                for name in (f"q{side}", f"k{side}"):
                    vectors = self.vectors[name].to(x.dtype).expand(1, x.shape[2], -1, -1)
                    found[name] = rope(vectors, place, self.layer.rope or _BASE)
            else:
                keys = _digits(place.positions, x.dtype) if self.shape == "decay" else x.new_zeros(DIGITS)
                rates = self.vectors[f"log_rate_{side}"].exp() if self.shape == "decay" else x.new_ones(1)
                found[f"k{side}"] = keys if self.shape == "constant" else keys[..., None, :]
                found[f"q{side}"] = rates.to(x.dtype)[:, None] * x.new_tensor([1 / 256, 1, 256] + [0] * (DIGITS - 3))
        heads = {"q": self.layer.heads, "k": self.layer.kv_heads}
        return {name: t.expand(*shape[:2], heads[name[0]], self.key_dim).transpose(1, 2) for name, t in found.items()}

    def _of(self, group: HeadGroup, scores: dict[str, Tensor]) -> Scores:
        used = {"a": group.run.direct == "all", "b": group.scores_b}
        part = {"q": group.heads, "k": group.shared}
        return {name: t[:, part[name[0]]] for name, t in scores.items() if used[name[1]]}

    def make_cache(self, batch: int, tokens: int | None, dtype: torch.dtype, device: torch.device) -> Cache:
        return join([slots(g, self.layer, self.key_dim, batch, tokens, dtype, device) for g in self.groups])

    def weights(self, u: Tensor, place: Place) -> Iterator[Weights]:
        gate = None if self.gate is None else self.gate(u)
        like = u.new_zeros(u.shape[0], 1, u.shape[1], 1)
        scores = self._scores(like, place)
        for group in self.groups:
            g = group.gates_of(gate, u)
            yield written_out(self._of(group, scores), g, group.pattern, self._scale)


def _digits(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Positions below 2^24 as three digits of base 256, padded to whole vectors. Queries and scale give their worth."""
    digits = torch.stack([positions % 256, positions // 256 % 256, positions // 65_536], -1).to(dtype)
    return torch.nn.functional.pad(digits, (0, DIGITS - 3))
