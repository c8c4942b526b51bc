"""What rules share whose heads run through the operator, group by group: gates, caches, and A and B written out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from resolvent.coefficients.gates import make_gate
from resolvent.coefficients.layer import (
    CacheMemory,
    CoefficientModule,
    Layer,
    group_cache,
    join_caches,
    mix_group,
    split_cache,
)
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.weights import Weights, write_out
from resolvent.ops import Cache
from resolvent.ops.inputs import BothSides, Scores
from resolvent.rules.rule import GatedRule


class GroupedCoefficients(CoefficientModule):
    """Queries and keys of every head group come from `pairs`; everything else is here."""

    scale: float | None = None  # of scores; the operator's own if None

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, GatedRule)
        self.groups = layer.groups()
        self.gates = self.groups[-1].gates.stop  # heads that have feedback
        self.gate = make_gate(layer.rule.gate, layer.dim, self.gates) if self.gates else None

    @abstractmethod
    def pairs(self, u: Tensor, positions: Positions, dtype: torch.dtype) -> Iterator[BothSides]:
        """(queries, keys) of A and of B, of each head group as it needs them: (B, heads, N, D')."""

    def tie(self, u: Tensor, gate: Tensor | None) -> tuple[Tensor | None, Tensor | None]:  # noqa: ARG002
        """The gate, and what ties A to B if anything does, (B or 1, gates, N or 1): `tied` of the operator."""
        return gate, None

    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        outputs = []
        caches = split_cache(cache, len(self.groups))
        for group, (scores, tied), own in zip(self.groups, self._scores(u, positions, x.dtype), caches, strict=True):
            values = x[:, group.shared]
            outputs.append(mix_group(values, scores, group, self.layer, positions, own, tied, self.scale))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def _scores(self, u: Tensor, positions: Positions, dtype: torch.dtype) -> Iterator[tuple[Scores, Tensor | None]]:
        """The scores of each head group, and what ties its A to its B."""
        gate, tied = self.tie(u, None if self.gate is None else self.gate(u))
        for group, (a, b) in zip(self.groups, self.pairs(u, positions, dtype), strict=True):
            own = gate[:, group.gates] if gate is not None and group.needs.gate else None
            yield Scores(a, b, own), None if tied is None else tied[:, group.gates]

    def make_cache(self, memory: CacheMemory) -> Cache:
        return join_caches([group_cache(group, self.layer, memory) for group in self.groups])

    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        for group, (scores, tied) in zip(self.groups, self._scores(u, positions, u.dtype), strict=True):
            yield write_out(u, scores, group, self.layer, tied, self.scale)
