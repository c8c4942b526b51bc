"""What the modules share: the shape of a layer, its heads by pattern, and the way to the operator and its caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.coefficients.positions import Positions
from resolvent.coefficients.weights import Weights
from resolvent.ops import Cache, Caches, decode_cache
from resolvent.ops.api import operate
from resolvent.ops.backend import Backend
from resolvent.ops.by_distance import DistanceBackend
from resolvent.ops.call import Options
from resolvent.ops.inputs import Scores
from resolvent.patterns import Needs, Pattern
from resolvent.rules import Rule, require_fit
from resolvent.rules.rope import Rope, RopeSetting, as_rope


@dataclass(frozen=True)
class HeadGroup:
    """Neighbouring heads with one pattern. `pattern` is the one given, `run` the one the operator runs on."""

    pattern: Pattern
    run: Pattern
    heads: slice
    shared: slice  # their keys and values
    gates: slice  # their gates, among the heads that have feedback
    needs: Needs  # of the operator

    @property
    def count(self) -> int:
        return int(self.heads.stop - self.heads.start)

    @property
    def kv_count(self) -> int:
        return int(self.shared.stop - self.shared.start)


@dataclass(frozen=True)
class Layer:
    """The shape of a layer: `patterns` has one for each head.

    rotation  what `rope` says, read once
    operator  the backend that the operator runs on: the layer's own, or one around it that reads by distance
    """

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    patterns: tuple[Pattern, ...]
    rule: Rule
    rope: RopeSetting
    bias: bool
    backend: str | Backend
    rotation: Rope | None = field(init=False)
    operator: str | Backend = field(init=False)

    def __post_init__(self) -> None:
        rope = as_rope(self.rope)
        object.__setattr__(self, "rotation", rope)
        if rope is not None and rope.by_distance:
            object.__setattr__(self, "operator", DistanceBackend(rope.within, self.backend))
        else:
            object.__setattr__(self, "operator", self.backend)

    @property
    def key_dim(self) -> int:
        """Length of the queries and keys that the operator sees."""
        own, rope = self.rule.key_dim(self.head_dim), self.rotation
        return own if rope is None else rope.key_dim(own)

    def groups(self) -> tuple[HeadGroup, ...]:
        """Heads by pattern, in order."""
        groups: list[HeadGroup] = []
        head = gate = 0
        share = self.heads // self.kv_heads
        for pattern, same in groupby(self.patterns):
            require_fit(self.rule, pattern)
            count = len(list(same))
            if count % share:
                raise ValueError(
                    f"heads that share keys and values must share a pattern: expected a multiple of {share} heads for "
                    f"{pattern}, got {count}."
                )
            run = self.rule.operator_pattern(pattern)
            shared = slice(head // share, (head + count) // share)
            gates = slice(gate, gate + count * run.recurrent)
            groups.append(HeadGroup(pattern, run, slice(head, head + count), shared, gates, self.rule.needs(pattern)))
            head, gate = head + count, gates.stop
        return tuple(groups)


class CoefficientModule(nn.Module, ABC):
    """Learns the numbers in A and B and applies them. u: (B, N, dim), the layer's input; x: (B, kv_heads, N, D).

    `no_weight_decay` names the parameters that weight decay must spare although they are matrices.
    """

    no_weight_decay: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    @abstractmethod
    def forward(self, u: Tensor, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        """Mixed values (B, heads, N, D); with a cache, those of the tokens after it, which it then holds."""

    @abstractmethod
    def make_cache(self, memory: CacheMemory) -> Cache:
        """An empty cache; its size is final if `max_tokens` is given."""

    @abstractmethod
    def weights(self, u: Tensor, positions: Positions) -> Iterator[Weights]:
        """A and B written out, for looking at: head group by head group."""


class CacheMemory(NamedTuple):
    """How large an empty cache is to be, and where."""

    batch: int
    max_tokens: int | str | None
    dtype: torch.dtype
    device: torch.device


def group_cache(group: HeadGroup, layer: Layer, memory: CacheMemory) -> Cache:
    """An empty decode cache for a head group."""
    return decode_cache(
        group.run,
        memory.batch,
        group.count,
        layer.head_dim,
        layer.key_dim,
        max_tokens=memory.max_tokens,
        dtype=memory.dtype,
        device=memory.device,
        normalize=layer.rule.normalize,
        kv_heads=layer.rule.shared_heads(group.count, group.kv_count),
    )


def mix_group(
    x: Tensor,
    scores: Scores,
    group: HeadGroup,
    layer: Layer,
    positions: Positions,
    cache: Cache | None,
    tied: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The operator on the heads of a group: all of a call, or on from a cache."""
    options = Options(scale, layer.rule.normalize, tied, layer.operator)
    return operate(x, group.run if tied is None else group.pattern, scores, options, positions.sequences, cache)


def join_caches(caches: Sequence[Cache]) -> Cache:
    """One cache as it is, several under their numbers."""
    return caches[0] if len(caches) == 1 else Caches({str(i): cache for i, cache in enumerate(caches)})


def split_cache(cache: Cache | None, count: int) -> list[Cache | None]:
    """The caches that `join_caches` put together."""
    if cache is None:
        return [None] * count
    return [cache] if count == 1 else [cache[str(i)] for i in range(count)]  # type: ignore[index]
