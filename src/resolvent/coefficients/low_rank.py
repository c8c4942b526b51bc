"""A of low rank over all the past, as in linear attention, and feedback by scores on the pattern.

    A~_ij = φ(q_i)·φ(k_j) / Σ_{j' ≤ i} φ(q_i)·φ(k_j'),   φ = elu + 1 > 0

A x needs only the sums Σ φ(k_j) x_j^T, a state of fixed size; then (I - B)^-1 runs on the pattern, if it has feedback.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, pad

from resolvent.analysis.coefficients import LowRank
from resolvent.coefficients.gates import make_gate
from resolvent.coefficients.layer import CoefficientModule, Layer
from resolvent.coefficients.place import Place
from resolvent.coefficients.rope import rope
from resolvent.coefficients.softmax import operate, slots
from resolvent.coefficients.states import advance, expand_heads, of_new_tokens, only_pattern
from resolvent.coefficients.weights import Scores, Weights, written_out
from resolvent.ops import Cache, Caches, State, expanded_scan
from resolvent.patterns import pattern


class LowRankCoefficients(CoefficientModule):
    """Positive features for A, queries and keys for B."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        assert isinstance(layer.rule, LowRank)
        self.rank = layer.rule.rank
        only_pattern(layer)
        self.group = layer.groups()[0]
        recurrent = self.group.run.recurrent
        self.features = nn.Linear(layer.dim, 2 * layer.heads * self.rank, layer.bias)
        self.scores = nn.Linear(layer.dim, 2 * layer.heads * layer.head_dim, layer.bias) if recurrent else None
        self.gate = make_gate(layer.rule.gate, layer.dim, layer.heads) if recurrent else None

    def forward(self, u: Tensor, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        read, write = (of_new_tokens(place, t) for t in self._features(u))
        x = of_new_tokens(place, expand_heads(x, self.layer))
        memory = None if cache is None else cache["memory"] if isinstance(cache, Caches) else cache
        state = None if memory is None else memory.parts["memory"]
        sums = torch.promote_types(x.dtype, torch.float32)
        values = pad(x.to(sums), (0, 1), value=1.0)  # a column of ones sums the weights
        still = x.new_zeros(x.shape[:-1], dtype=sums)  # nothing fades
        begins = place.begins if place.packed else None
        mixed, state = expanded_scan(values, write.to(sums), read.to(sums), still, state, begins)
        if memory is not None:
            advance(memory, place, u.shape[1], memory=state)
        totals = mixed[..., -1:]
        if place.inside is not None:
            totals = totals.masked_fill(~place.inside[:, None, :, None], 1)  # nothing is summed in padding
        direct = of_new_tokens(place, (mixed[..., :-1] / totals).to(x.dtype))
        if self.gate is None:
            return direct
        slots_of_b = None if cache is None else cache["feedback"]  # type: ignore[index]
        return operate(direct, self._scores(u, place), self.gate(u), self.group, self.layer, place, slots_of_b)

    def _features(self, u: Tensor) -> tuple[Tensor, Tensor]:
        features = (elu(self.features(u)) + 1).unflatten(-1, (2, self.layer.heads, self.rank))
        read, write = (f.transpose(1, 2) for f in features.unbind(2))
        return read, write

    def _scores(self, u: Tensor, place: Place) -> Scores:
        assert self.scores is not None
        projected = self.scores(u).unflatten(-1, (2 * self.layer.heads, -1))
        qb, kb = (t.transpose(1, 2) for t in rope(projected, place, self.layer.rope).chunk(2, 2))
        return {"qb": qb, "kb": kb}

    def make_cache(self, batch: int, tokens: int | None, dtype: torch.dtype, device: torch.device) -> Cache:
        kept = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.layer.heads, self.rank, self.layer.head_dim + 1)
        memory = State({"memory": torch.zeros(shape, dtype=kept, device=device)})
        if self.gate is None:
            return memory
        group, layer = self.group, self.layer
        feedback = slots(group, layer, layer.head_dim, batch, tokens, dtype, device, kv_count=layer.heads)
        return Caches({"memory": memory, "feedback": feedback})

    def weights(self, u: Tensor, place: Place) -> Iterator[Weights]:
        n, everything = u.shape[1], pattern("attention")
        read, write = self._features(u)
        a = (read @ write.transpose(-1, -2)).tril()
        a = a / a.sum(-1, keepdim=True)
        distance = torch.arange(n, device=u.device)
        nearest_first = (distance[:, None] - distance).clamp(min=0).expand(a.shape)
        alpha = a.gather(-1, nearest_first) * (distance <= distance[:, None])
        if self.gate is None:
            yield Weights(alpha, None, everything, everything)
            return
        scores = self._scores(u, place)
        feedback = written_out(scores, self.gate(u), self.group.run, self.layer.head_dim**-0.5)
        yield Weights(feedback.alpha * alpha, feedback.beta, everything, self.group.run)
