"""Attention-like coefficients: scores of queries and keys, a softmax on the pattern, and a gate between A and B.

The same module serves three rules: `softmax` (two independent sets of scores), `whole` (one softmax over the whole of
T) and `tied` (A = δB + D', one set of scores).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import Gated, Tied, Whole
from resolvent.coefficients.gates import make_gate
from resolvent.coefficients.layer import CoefficientModule, HeadGroup, Layer, join, parts_of
from resolvent.coefficients.place import Place
from resolvent.coefficients.rope import rope
from resolvent.coefficients.weights import Scores, Weights, written_out
from resolvent.ops import Cache, DecodeCache, Normalise, extend, mix


class SoftmaxCoefficients(CoefficientModule):
    """Scores from projections of the layer's input, turned by their positions."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, Gated)
        self.groups = layer.groups()
        self.normalise: Normalise = "whole" if isinstance(layer.rule, Whole) else "gate"
        self.named = [self._sizes(group) for group in self.groups]
        self.sizes = [size for sizes in self.named for size in sizes.values()]
        gates = self.groups[-1].gates.stop
        self.gate = make_gate(layer.rule.gate, layer.dim, gates) if gates else None
        self.delta = nn.Parameter(torch.zeros(gates)) if isinstance(layer.rule, Tied) else None
        self.scores = nn.Linear(layer.dim, sum(self.sizes) * layer.head_dim, layer.bias) if self.sizes else None

    def reset_parameters(self) -> None:
        """Tied matrices start with A on the diagonal alone."""
        if self.delta is not None:
            nn.init.zeros_(self.delta)

    def _sizes(self, group: HeadGroup) -> dict[str, int]:
        """Heads of the queries and keys that a group needs; a softmax over one entry needs none."""
        sizes: dict[str, int] = {}
        if group.run.direct == "all" or (self.normalise == "whole" and group.run.recurrent):
            sizes |= {"qa": group.count, "ka": group.kv_count}
        if group.scores_b:
            sizes |= {"qb": group.count, "kb": group.kv_count}
        return sizes

    def forward(self, u: Tensor, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        gate = None if self.gate is None else self.gate(u)
        outputs = []
        parts = parts_of(cache, len(self.groups))
        for group, scores, part in zip(self.groups, self._scores(u, place), parts, strict=True):
            g = None if gate is None or not group.run.recurrent else gate[:, group.gates]
            tied = None if self.delta is None else self.delta[group.gates]
            outputs.append(operate(x[:, group.shared], scores, g, group, self.layer, place, part, self.normalise, tied))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def _scores(self, u: Tensor, place: Place) -> Iterator[Scores]:
        """Queries and keys of each head group."""
        if self.scores is None:
            yield from ({} for _ in self.groups)
            return
        projected = self.scores(u).unflatten(-1, (-1, self.layer.head_dim))
        pieces = iter(rope(projected, place, self.layer.rope).split(self.sizes, 2))
        for sizes in self.named:
            yield {name: next(pieces).transpose(1, 2) for name in sizes}

    def make_cache(self, batch: int, tokens: int | None, dtype: torch.dtype, device: torch.device) -> Cache:
        layer = self.layer
        return join([slots(group, layer, layer.head_dim, batch, tokens, dtype, device, self.normalise)
                     for group in self.groups])  # fmt: skip

    def weights(self, u: Tensor, place: Place) -> Iterator[Weights]:
        gate = None if self.gate is None else self.gate(u)
        for group, scores in zip(self.groups, self._scores(u, place), strict=True):
            g = group.gates_of(gate, u)
            tied = None if self.delta is None else self.delta[group.gates]
            yield written_out(scores, g, group.pattern, self.layer.head_dim**-0.5, self.normalise, tied)


def operate(
    x: Tensor, scores: Scores, gate: Tensor | None, group: HeadGroup, layer: Layer, place: Place, cache: Cache | None,
    normalise: Normalise = "gate", tied: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """The operator on the heads of a group: a whole call, or on from a cache."""
    qa, ka, qb, kb = (scores.get(name) for name in ("qa", "ka", "qb", "kb"))
    if tied is not None and tied.dtype != x.dtype:
        tied = tied.to(x.dtype)
    if cache is None:
        return mix(x, qa, ka, qb, kb, gate, group.pattern if tied is not None else group.run, scale=scale,
                   normalise=normalise, tied=tied, cu_seqlens=place.cu_seqlens, start=place.start,
                   backend=layer.backend)  # fmt: skip
    assert isinstance(cache, DecodeCache)
    return extend(x, qa, ka, qb, kb, gate, group.pattern if tied is not None else group.run, cache, scale=scale,
                  normalise=normalise, tied=tied, start=place.start, backend=layer.backend)  # fmt: skip


def slots(
    group: HeadGroup, layer: Layer, key_dim: int, batch: int, tokens: int | None, dtype: torch.dtype,
    device: torch.device, normalise: Normalise = "gate", kv_count: int | None = None,
) -> DecodeCache:  # fmt: skip
    """An empty decode cache for a head group."""
    return DecodeCache(
        group.run, batch, group.count, layer.head_dim, key_dim, tokens, dtype, device, normalise,
        kv_heads=group.kv_count if kv_count is None else kv_count,
    )  # fmt: skip
