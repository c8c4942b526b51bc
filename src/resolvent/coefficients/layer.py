"""What the modules share: the shape of a layer, its heads by pattern, and the way to the operator and its caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import Coefficients, as_run, fit
from resolvent.analysis.cost import reads_several
from resolvent.coefficients.place import Place
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, Caches
from resolvent.patterns import Pattern


@dataclass(frozen=True)
class HeadGroup:
    """Neighbouring heads with one pattern. `pattern` is the one given, `run` the one the operator runs on."""

    pattern: Pattern
    run: Pattern
    heads: slice
    shared: slice  # their keys and values
    gates: slice  # their gates, among the heads that have feedback
    scores_b: bool  # whether feedback is weighed by scores; from one source it is taken as it is

    @property
    def count(self) -> int:
        return int(self.heads.stop - self.heads.start)

    @property
    def kv_count(self) -> int:
        return int(self.shared.stop - self.shared.start)

    def gates_of(self, gate: Tensor | None, u: Tensor) -> Tensor:
        """The gates of these heads, (B, heads, N), zero where there is no feedback."""
        if gate is None or not self.run.recurrent:
            return u.new_zeros(u.shape[0], self.count, u.shape[1])
        return gate[:, self.gates]


@dataclass(frozen=True)
class Layer:
    """The shape of a layer: `patterns` has one for each head."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    patterns: tuple[Pattern, ...]
    rule: Coefficients
    rope: float | None
    bias: bool
    backend: str

    def groups(self) -> tuple[HeadGroup, ...]:
        """Heads by pattern, in order."""
        found: list[HeadGroup] = []
        head = gate = 0
        share = self.heads // self.kv_heads
        for pattern, same in groupby(self.patterns):
            fit(self.rule, pattern)
            count = len(list(same))
            if count % share:
                raise ValueError(
                    f"heads that share keys and values must share a pattern: expected a multiple of {share} heads for "
                    f"{pattern}, got {count}."
                )
            run = as_run(self.rule, pattern)
            shared = slice(head // share, (head + count) // share)
            gates = slice(gate, gate + count * run.recurrent)
            scores_b = run.recurrent and reads_several(run)
            found.append(HeadGroup(pattern, run, slice(head, head + count), shared, gates, scores_b))
            head, gate = head + count, gates.stop
        return tuple(found)


class CoefficientModule(nn.Module, ABC):
    """Learns the numbers in A and B and applies them. u: (B, N, dim), the layer's input; x: (B, kv_heads, N, D)."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    @abstractmethod
    def forward(self, u: Tensor, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        """Mixed values (B, heads, N, D); with a cache, those of the tokens after it, which it then holds."""

    @abstractmethod
    def make_cache(self, batch: int, tokens: int | None, dtype: torch.dtype, device: torch.device) -> Cache:
        """An empty cache; its size is final if `tokens` is given."""

    @abstractmethod
    def weights(self, u: Tensor, place: Place) -> Iterator[Weights]:
        """A and B written out, for looking at: head group by head group."""


def join(caches: Sequence[Cache]) -> Cache:
    """One cache as it is, several under their numbers."""
    return caches[0] if len(caches) == 1 else Caches({str(i): cache for i, cache in enumerate(caches)})


def parts_of(cache: Cache | None, count: int) -> list[Cache] | list[None]:
    """The caches that `join` put together."""
    if cache is None:
        return [None] * count
    return [cache] if count == 1 else [cache[str(i)] for i in range(count)]  # type: ignore[index]
