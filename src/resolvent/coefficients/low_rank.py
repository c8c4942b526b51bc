"""A of low rank over all the past, as in linear attention, and feedback by scores on the pattern.

    A~_ij = φ(q_i)·φ(k_j) / Σ_{j' ≤ i} φ(q_i)·φ(k_j'),   φ = elu + 1 > 0

A x needs only the sums Σ φ(k_j) x_j^T, a state of fixed size; then (I - B)^-1 runs on the pattern, if it has feedback.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, pad

from resolvent.coefficients.gates import make_gate
from resolvent.coefficients.layer import CacheMemory, CoefficientModule, Layer, group_cache, mix_group
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.rope import rope
from resolvent.coefficients.states import advance, expand_heads, only_stage, scan_state, zero_padding
from resolvent.coefficients.weights import Weights, write_out
from resolvent.ops import Cache, Caches, ScanState, expanded_scan
from resolvent.ops.inputs import QueriesAndKeys, Scores
from resolvent.patterns import pattern
from resolvent.rules.low_rank import LowRank


class LowRankCoefficients(CoefficientModule):
    """Positive features for A, queries and keys for B."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, LowRank)
        self.rank = layer.rule.rank
        only_stage(layer)
        self.group = layer.groups()[0]
        needs = self.group.needs
        self.features = nn.Linear(layer.dim, 2 * layer.heads * self.rank, layer.bias)
        self.scores = nn.Linear(layer.dim, 2 * layer.heads * layer.head_dim, layer.bias) if needs.b else None
        self.gate = make_gate(layer.rule.gate, layer.dim, layer.heads) if needs.gate else None

    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        read, write = (zero_padding(positions, t) for t in self._features(u))
        x = zero_padding(positions, expand_heads(x, self.layer))
        memory = None if cache is None else scan_state(cache["memory"] if isinstance(cache, Caches) else cache)
        state = None if memory is None else memory.tensors["memory"]
        sums = torch.promote_types(x.dtype, torch.float32)
        values = pad(x.to(sums), (0, 1), value=1.0)  # a column of ones sums the weights
        no_decay = x.new_zeros(x.shape[:-1], dtype=sums)
        begins = positions.begins if positions.sequences.packed else None
        mixed, state = expanded_scan(values, write.to(sums), read.to(sums), no_decay, state, begins)
        if memory is not None:
            advance(memory, positions, u.shape[1], memory=state)
        totals = mixed[..., -1:]
        if positions.mask is not None:
            totals = totals.masked_fill(~positions.mask[:, None, :, None], 1)  # nothing is summed in padding
        direct = zero_padding(positions, (mixed[..., :-1] / totals).to(x.dtype))
        if self.gate is None:
            return direct
        feedback = cache["feedback"] if isinstance(cache, Caches) else None
        scores = Scores(b=self._queries_and_keys(u, positions), gate=self.gate(u))
        return mix_group(direct, scores, self.group, self.layer, positions, feedback)

    def _features(self, u: Tensor) -> tuple[Tensor, Tensor]:
        features = (elu(self.features(u)) + 1).unflatten(-1, (2, self.layer.heads, self.rank))
        read, write = (f.transpose(1, 2) for f in features.unbind(2))
        return read, write

    def _queries_and_keys(self, u: Tensor, positions: Positions) -> QueriesAndKeys | None:
        """Of B: each (B, heads, N, D)."""
        if self.scores is None:
            return None
        projected = self.scores(u).unflatten(-1, (2 * self.layer.heads, -1))
        qb, kb = (t.transpose(1, 2) for t in rope(projected, positions, self.layer.rotation).chunk(2, 2))
        return qb, kb

    def make_cache(self, memory: CacheMemory) -> Cache:
        dtype = torch.promote_types(memory.dtype, torch.float32)
        shape = (memory.batch, self.layer.heads, self.rank, self.layer.head_dim + 1)
        state = ScanState({"memory": torch.zeros(shape, dtype=dtype, device=memory.device)})
        if self.gate is None:
            return state
        return Caches({"memory": state, "feedback": group_cache(self.group, self.layer, memory)})

    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        n, everything = u.shape[1], pattern("attention").stages[0]
        read, write = self._features(u)
        a = (read @ write.transpose(-1, -2)).tril()
        a = a / a.sum(-1, keepdim=True)
        distance = torch.arange(n, device=u.device)
        nearest_first = (distance[:, None] - distance).clamp(min=0).expand(a.shape)
        alpha = a.gather(-1, nearest_first) * (distance <= distance[:, None])
        if self.gate is None:
            yield Weights(alpha, None, everything, everything)
            return
        scores = Scores(b=self._queries_and_keys(u, positions), gate=self.gate(u))
        feedback = write_out(u, scores, self.group, self.layer)
        yield Weights(feedback.alpha * alpha, feedback.beta, everything, feedback.b)
