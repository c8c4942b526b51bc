"""The layer: values are projected, mixed along the sequence by (I - B)^-1 A, and projected back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resolvent.analysis.coefficients import Coefficients, coefficients
from resolvent.coefficients import Layer, Place, Weights, make_coefficients, place
from resolvent.coefficients.place import Integers
from resolvent.ops import Cache
from resolvent.patterns import Pattern, pattern


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
        return self.at(x, place(x.shape[1], x.device, cu_seqlens, start))

    def extend(
        self, x: Tensor, cache: Cache | None = None, *, start: Integers | None = None, tokens: int | None = None
    ) -> tuple[Tensor, Cache]:
        """Mix the next tokens of sequences whose past is in the cache; None begins them.

        Prefill, chunked prefill and decoding are this one verb, and every split gives what `forward` gives. The cache
        is brought up to date in place. `tokens` fixes the size of a new cache.
        """
        self._check(x)
        if cache is None:
            cache = self.make_cache(x.shape[0], tokens, _computed_in(x), x.device)
        elif cache.batch != x.shape[0]:
            raise ValueError(f"expected a cache of {x.shape[0]} sequences, got one of {cache.batch}.")
        return self.at(x, place(x.shape[1], x.device, None, start, cache.positions), cache), cache

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
        return self.coefficients.make_cache(batch, tokens, dtype or like.dtype, torch.device(device or like.device))

    def weights(self, x: Tensor) -> list[Weights]:
        """A and B for an input, written out on their patterns, for looking at: one entry per group of heads."""
        self._check(x)
        return list(self.coefficients.weights(x, place(x.shape[1], x.device)))

    def extra_repr(self) -> str:
        spelled = " | ".join(dict.fromkeys(map(str, self.layer.patterns)))
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
    shared = heads if kv_heads is None else kv_heads
    if shared < 1 or heads % shared:
        raise ValueError(f"expected kv_heads to divide the {heads} heads, got {kv_heads}.")
    each = [spec] * heads if isinstance(spec, str | Pattern) else list(spec)
    if len(each) != heads:
        raise ValueError(f"expected one pattern, or one for each of the {heads} heads, got {len(each)}.")
    return Layer(
        dim, heads, shared, head_dim or dim // heads, tuple(pattern(p) for p in each), coefficients(rule), rope, bias,
        backend,
    )  # fmt: skip


def _computed_in(x: Tensor) -> torch.dtype:
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype
