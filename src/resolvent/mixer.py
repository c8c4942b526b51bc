"""The layer: values are projected, mixed along the sequence by (I - B)^-1 A, and projected back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import Coefficients, Distance, coefficients
from resolvent.coefficients import Layer, Place, Weights, make_coefficients, place
from resolvent.ops import Cache, Caches, DecodeCache
from resolvent.ops.interface import BACKENDS
from resolvent.ops.sequences import Integers
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.errors import closest


class Mixer(nn.Module):
    """A causal token-mixing layer, (B, N, dim) → (B, N, dim).

    pattern: who reads whom, for all heads, or a list with one pattern per head.
    coefficients: how much, by a rule's spelling (`resolvent.coefficients`); `softmax`, the paper's, unless given.
    kv_heads: sets of keys and values that the heads share (grouped queries); each head has its own unless given.
    rope: base of the rotary positions, or None for none.
    backend: see `resolvent.choose_backend`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: str | Pattern | Sequence[str | Pattern],
        *,
        coefficients: str | Coefficients = "softmax",
        head_dim: int | None = None,
        kv_heads: int | None = None,
        rope: float | None = 10_000.0,
        bias: bool = True,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.layer = _layer(dim, heads, pattern, coefficients, head_dim, kv_heads, rope, bias, backend)
        self.values = nn.Linear(dim, self.layer.kv_heads * self.layer.head_dim, bias)
        self.coefficients = make_coefficients(self.layer)
        self.output = nn.Linear(heads * self.layer.head_dim, dim, bias)

    def forward(self, x: Tensor, *, cu_seqlens: Integers | None = None, start: Integers | None = None) -> Tensor:
        """Mix whole sequences.

        cu_seqlens: 0, ends of the sequences packed along N.  start: (B,) where each begins, after padding on the left.
        """
        self._check(x)
        return self.at(x, place(x.shape[0], x.shape[1], x.device, cu_seqlens, start))

    def extend(
        self, x: Tensor, cache: Cache | None = None, *, start: Integers | None = None, room: int | None = None
    ) -> tuple[Tensor, Cache]:
        """Mix the next tokens of sequences whose past is in the cache; None begins them.

        Prefill, chunked prefill and decoding are this one verb, and every split gives what `forward` gives. The cache
        is brought up to date in place. `room` makes a new cache for so many tokens, of a size that is final. Under
        `torch.no_grad()` it is written in place, which is much quicker; otherwise gradients flow through it.
        """
        self._check(x)
        if cache is None:
            cache = self.make_cache(x.shape[0], room, device=x.device)
        else:
            check_cache(cache, self.kind_of_cache, x.shape[0], room)
        where = place(x.shape[0], x.shape[1], x.device, None, start, cache.positions)
        cache.make_room(where.longest)  # or a refusal, before anything is written
        return self.at(x, where, cache), cache

    def at(self, x: Tensor, where: Place, cache: Cache | None = None) -> Tensor:
        """What `forward` and `extend` do, with positions that a stack works out once for all its layers."""
        values = self.values(x).unflatten(-1, (self.layer.kv_heads, -1)).transpose(1, 2)
        mixed = self.coefficients(x, values, where, cache)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def make_cache(
        self,
        batch: int = 1,
        tokens: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Cache:
        """An empty cache for `extend`. With `tokens` given, `nbytes` is final before the first one comes."""
        like = self.output.weight
        device = torch.device(device or like.device)
        return self.coefficients.make_cache(batch, tokens, dtype or _computed_in(like.dtype, device.type), device)

    @cached_property
    def kind_of_cache(self) -> object:
        """What its caches are made of, to tell others apart."""
        return kind_of(self.coefficients.make_cache(1, 1, torch.float32, torch.device("meta")))

    def weights(self, x: Tensor) -> list[Weights]:
        """A and B for an input, written out on their patterns, for looking at: one entry per group of heads."""
        self._check(x)
        return list(self.coefficients.weights(x, place(x.shape[0], x.shape[1], x.device)))

    def extra_repr(self) -> str:
        groups = [(str(p), len(list(same))) for p, same in groupby(self.layer.patterns)]
        spelled = groups[0][0] if len(groups) == 1 else " | ".join(f"{count} × {p}" for p, count in groups)
        return f"{self.layer.dim}, heads={self.layer.heads}, pattern='{spelled}', coefficients='{self.layer.rule}'"

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.layer.dim or x.shape[1] < 1:
            raise ValueError(f"expected x of shape (B, N, {self.layer.dim}) with N ≥ 1, got {tuple(x.shape)}.")


def _layer(
    dim: int, heads: int, spec: str | Pattern | Sequence[str | Pattern], rule: str | Coefficients,
    head_dim: int | None, kv_heads: int | None, rope: float | None, bias: bool, backend: str,
) -> Layer:  # fmt: skip
    if heads < 1 or dim < 1:
        raise ValueError(f"expected dim and heads ≥ 1, got dim={dim} and heads={heads}.")
    if head_dim is None and dim % heads:
        raise ValueError(f"expected heads to divide dim, got dim={dim} and heads={heads}; or give head_dim.")
    width = dim // heads if head_dim is None else head_dim
    rule = coefficients(rule)
    if width < 1:
        raise ValueError(f"expected head_dim ≥ 1, got {head_dim}.")
    if rope is not None and (isinstance(rope, bool) or not rope > 0):
        raise ValueError(
            f"rope is the base of rotary positions: expected a number > 0 such as 10000.0, or None, got {rope!r}."
        )
    turned = rope is not None and not rule.first_order and not isinstance(rule, Distance)
    if width % 2 and (turned or (isinstance(rule, Distance) and rule.shape == "toeplitz")):
        raise ValueError(f"rotary positions turn pairs of numbers: expected an even head_dim, got {width}.")
    names = ("auto", *BACKENDS)
    if backend not in names:
        raise ValueError(f"unknown backend {backend!r}: expected {', '.join(names)}.{closest(backend, names)}")
    if backend != "auto" and rule.first_order:
        raise ValueError(f"{rule} runs on scans, which choose by the device: expected backend='auto', got {backend!r}.")
    shared = heads if kv_heads is None else kv_heads
    if shared < 1 or heads % shared:
        raise ValueError(f"expected kv_heads to divide the {heads} heads, got {kv_heads}.")
    each = [spec] * heads if isinstance(spec, str | Pattern) else list(spec)
    if len(each) != heads:
        raise ValueError(f"expected one pattern, or one for each of the {heads} heads, got {len(each)}.")
    return Layer(dim, heads, shared, width, tuple(pattern(p) for p in each), rule, rope, bias, backend)


def kind_of(cache: Cache) -> object:
    """What a cache is made of: slots on a pattern, a state, or several by name."""
    if isinstance(cache, Caches):
        return {name: kind_of(child) for name, child in cache.items()}
    return str(cache.pattern) if isinstance(cache, DecodeCache) else "a state"


def check_cache(cache: Cache, expected: object, batch: int, room: int | None) -> None:
    """A cache that this layer or model made, or one like it."""
    found = kind_of(cache)
    if found != expected:
        raise ValueError(f"expected a cache of this model, made of {expected}, got one made of {found}.")
    if cache.batch != batch:
        raise ValueError(f"expected a cache of {batch} sequences, got one of {cache.batch}.")
    if room is not None:
        raise ValueError("room is for a new cache: expected no room beside a cache that is there.")


def _computed_in(dtype: torch.dtype, device: str) -> torch.dtype:
    """What a layer of this dtype computes in, under autocast or not."""
    if dtype != torch.float64 and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return dtype
