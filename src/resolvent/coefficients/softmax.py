"""Attention-like coefficients: scores of queries and keys, a softmax on the pattern, and a gate between A and B.

The same module serves three rules: `softmax` (two independent sets of scores), `joint` (one softmax over all of T) and
`tied` (A = BD + D', one set of scores).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor, nn

from resolvent.coefficients.gates import TokenBlend
from resolvent.coefficients.grouped import GroupedCoefficients
from resolvent.coefficients.layer import HeadGroup, Layer
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.rope import rope, with_distance
from resolvent.ops.inputs import BothSides
from resolvent.rules.softmax import Tied


@final
class SoftmaxCoefficients(GroupedCoefficients):
    """Scores from projections of the layer's input, turned by their positions."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        rotation = layer.rotation
        if rotation is not None and rotation.by_distance:
            self.scale = float(layer.head_dim**-0.5)  # of one product, not of all that queries and keys hold
        self.sizes = [size for group in self.groups for size in _sizes(group)]
        free = isinstance(layer.rule, Tied) and layer.rule.blend == "free"
        self.blend = TokenBlend(layer.dim, self.gates) if layer.rule.tied and not free else None
        self.delta = nn.Parameter(torch.zeros(self.gates)) if free else None
        self.scores = nn.Linear(layer.dim, sum(self.sizes) * layer.head_dim, layer.bias) if self.sizes else None

    def reset_parameters(self) -> None:
        """With a free δ, matrices start with A on the diagonal alone."""
        if self.delta is not None:
            nn.init.zeros_(self.delta)

    # With a blend ρ and a gate h, token i takes h_i Σ_j B~_ij u_j + (1 - h_i) x_i from u_j = (1 - ρ_j) y_j + ρ_j x_j:
    # β_ij = h_i B~_ij (1 - ρ_j), α_ij = h_i B~_ij ρ_j, α_ii = 1 - h_i. None is negative and each row sums to one. That
    # is A = BD + D' with d = ρ / (1 - ρ) and d' = 1 - h, and u runs through the operator with the gate (1 - ρ) h.
    def tie(self, u: Tensor, gate: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if self.delta is not None:
            return gate, self.delta[:, None].expand(1, -1, 1)
        if self.blend is None or gate is None:
            return gate, None
        share = self.blend(u)
        return (1 - share) * gate, share / (1 - share)

    def pairs(
        self,
        u: Tensor,
        positions: Positions,
        dtype: torch.dtype,  # noqa: ARG002
    ) -> Iterator[BothSides]:
        tensors: Iterator[Tensor] = iter(())
        if self.scores is not None:
            projected = self.scores(u).unflatten(-1, (-1, self.layer.head_dim))
            tensors = (t.transpose(1, 2) for t in self._turned(projected, positions))
        for group in self.groups:
            a = (next(tensors), next(tensors)) if group.needs.a else None
            b = (next(tensors), next(tensors)) if group.needs.b else None
            yield a, b

    def _turned(self, projected: Tensor, positions: Positions) -> Sequence[Tensor]:
        """Queries and keys in turn, (B, N, heads, D'), as the layer's positions turn them."""
        rotation = self.layer.rotation
        if rotation is None or not rotation.by_distance:
            return list(rope(projected, positions, rotation).split(self.sizes, 2))
        turned = with_distance(projected, positions, rotation)
        queries, keys = (each.split(self.sizes, 2) for each in turned)
        return [keys[i] if i % 2 else queries[i] for i in range(len(self.sizes))]


def _sizes(group: HeadGroup) -> list[int]:
    return [group.count, group.kv_count] * (group.needs.a + group.needs.b)
