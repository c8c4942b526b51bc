"""The layer: values are projected, mixed along the sequence by (I - B)^-1 A, and projected back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from resolvent.coefficients import Layer, Positions, Weights, make_coefficients, positions_of
from resolvent.coefficients.layer import CacheMemory
from resolvent.coefficients.states import advance, scan_state
from resolvent.ops import Cache, Caches, ScanState
from resolvent.ops.backend import Backend
from resolvent.ops.precision import autocast_enabled
from resolvent.ops.registry import find, prepare
from resolvent.ops.sequences import Indices, from_front, to_front
from resolvent.patterns import Pattern, PatternLike, as_pattern
from resolvent.rules import Rule, as_rule
from resolvent.rules.rope import BASE, RopeSetting, require_rope_fit


class Mixer(nn.Module):
    """A causal token-mixing layer, (B, N, dim) → (B, N, dim).

    Args:
        dim: channels of the input and the output.
        heads: heads, each of `head_dim` channels.
        pattern: who reads whom, for all heads, or a list with one pattern per head. A pattern is a spelling such as
            "exponential+cache", a `Pattern`, or a function k ↦ stride.
        rule: how A and B are parameterized, by its spelling (`resolvent.rules`) [default: softmax, the paper's].
        head_dim: channels of a head [default: dim / heads].
        kv_heads: sets of keys and values that the heads share (grouped queries) [default: heads].
        rope: base of the rotary positions, None for none, or a spelling such as "ntk:factor=8" (`rules.rope.Rope`).
        bias: whether projections have one.
        backend: see `resolvent.choose_backend`.

    >>> layer = Mixer(dim=64, heads=4, pattern="quadratic+cache")
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: PatternLike | Sequence[PatternLike],
        *,
        rule: str | Rule = "softmax",
        head_dim: int | None = None,
        kv_heads: int | None = None,
        rope: RopeSetting = BASE,
        bias: bool = True,
        backend: str | Backend = "auto",
    ) -> None:
        super().__init__()
        head_dim, kv_heads = _head_sizes(dim, heads, head_dim, kv_heads)
        rule, patterns = as_rule(rule), _patterns(pattern, heads)
        _check_options(rule, head_dim, rope, backend)
        self.layer = Layer(dim, heads, kv_heads, head_dim, patterns, rule, rope, bias, backend)
        self.convolution = Convolution(dim, rule.conv) if rule.conv else None
        self.values = nn.Linear(dim, kv_heads * head_dim, bias)
        self.coefficients = make_coefficients(self.layer)
        self.output = nn.Linear(heads * head_dim, dim, bias)
        self._prepare()

    def forward(self, x: Tensor, *, cu_seqlens: Indices | None = None, start: Indices | None = None) -> Tensor:
        """Mix whole sequences.

        Args:
            x: (B, N, dim).
            cu_seqlens: 0 and the ends of the sequences packed along N.
            start: (B,) where each sequence begins, after padding on the left.

        Returns:
            (B, N, dim).
        """
        self._check(x)
        positions = positions_of(x.shape[0], x.shape[1], x.device, cu_seqlens, start)
        return self.at(_without_padding(x, positions), positions)

    def extend(
        self,
        x: Tensor,
        cache: Cache | None = None,
        *,
        start: Indices | None = None,
        max_tokens: int | str | None = None,
    ) -> tuple[Tensor, Cache]:
        """Mix the next tokens of sequences whose past is in the cache.

        Prefill, chunked prefill and decoding are this one method, and every split gives what `forward` gives. Under
        `torch.no_grad()` the cache is written in place, which is much quicker; otherwise gradients flow through it.

        Args:
            x: (B, N, dim), the new tokens.
            cache: as the last call returned it, which updates it in place; None begins the sequences.
            start: (B,) where each sequence begins, after padding on the left.
            max_tokens: makes a new cache for this many tokens, of a size that is final.

        Returns:
            (B, N, dim) for the new tokens, and the cache.
        """
        self._check(x)
        if cache is None:
            cache = self.make_cache(x.shape[0], max_tokens, device=x.device)
        else:
            check_cache(cache, self.cache_signature, x.shape[0], max_tokens)
        positions = positions_of(x.shape[0], x.shape[1], x.device, None, start, cache.positions)
        cache.reserve(positions.longest)
        return self.at(_without_padding(x, positions), positions, cache), cache

    def at(self, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        """What `forward` and `extend` do, with positions that a stack computes once for all its layers."""
        if self.convolution is not None:
            own, cache = (cache["recent"], cache["mixing"]) if isinstance(cache, Caches) else (None, None)
            x = self.convolution(x, positions, own)
        values = self.values(x).unflatten(-1, (self.layer.kv_heads, -1)).transpose(1, 2)
        mixed = self.coefficients(x, values, positions, cache)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def make_cache(
        self,
        batch: int = 1,
        max_tokens: int | str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Cache:
        """An empty cache for `extend`. With `max_tokens` given, `nbytes` is final before the first one comes."""
        weight = self.output.weight
        device = torch.device(device or weight.device)
        dtype = dtype or _computed_in(weight.dtype, device.type)
        return self._cache(CacheMemory(batch, max_tokens, dtype, device))

    def _cache(self, memory: CacheMemory) -> Cache:
        mixing = self.coefficients.make_cache(memory)
        if self.convolution is None:
            return mixing
        return Caches({"recent": self.convolution.make_cache(memory), "mixing": mixing})

    @cached_property
    def cache_signature(self) -> object:
        """What its caches are made of, to tell others apart."""
        return self._cache(CacheMemory(1, 1, torch.float32, torch.device("meta"))).signature

    def weights(self, x: Tensor) -> list[Weights]:
        """A and B for an input, written out on their patterns, for looking at: one entry per group of heads."""
        self._check(x)
        positions = positions_of(x.shape[0], x.shape[1], x.device)
        x = x if self.convolution is None else self.convolution(x, positions)
        return list(self.coefficients.weights(x, positions))

    def extra_repr(self) -> str:
        groups = [(str(p), len(list(same))) for p, same in groupby(self.layer.patterns)]
        spelled = groups[0][0] if len(groups) == 1 else " | ".join(f"{count} × {p}" for p, count in groups)
        return f"{self.layer.dim}, heads={self.layer.heads}, pattern='{spelled}', rule='{self.layer.rule}'"

    def _prepare(self) -> None:
        """Kernels are compiled, once on a machine, while the rest of a model is built and its data are read."""
        weight, rule = self.values.weight, self.layer.rule
        if not rule.scan and weight.device.type == "cpu":
            stages = {stage for group in self.layer.groups() for stage in group.run.stages}
            prepare(self.layer.backend, stages, weight.dtype, self.layer.head_dim)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.layer.dim or x.shape[1] < 1:
            raise ValueError(f"expected x of shape (B, N, {self.layer.dim}) with N ≥ 1, got {tuple(x.shape)}.")


class Convolution(nn.Module):
    """A short causal convolution before a rule, as Mamba's block has one: v_i[c] = Σ_k w[c, k] u_{i-k}[c].

    Each channel of the layer's input, (B, N, dim), is convolved along its sequence; column k weighs k tokens back.

    It starts as the identity, so that a layer begins as one without it does. No activation: what follows is linear.
    """

    no_weight_decay = ("weight",)

    def __init__(self, dim: int, span: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, span))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        with torch.no_grad():
            self.weight[:, 0] = 1

    def forward(self, u: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        (dim, span), n = self.weight.shape, u.shape[1]
        starts = None if positions.mask is None else torch.tensor(positions.sequences.starts, device=u.device)
        moved = u if starts is None else to_front((u[:, None],), starts)[0][:, 0]  # past the padding, the past goes on
        recent = u.new_zeros(u.shape[0], span - 1, dim) if cache is None else scan_state(cache).tensors["recent"]
        seen = torch.cat([recent.to(u.dtype), moved], 1)
        v = torch.zeros_like(moved)
        for back, weight in enumerate(self.weight.to(u.dtype).unbind(1)):
            read = seen[:, span - 1 - back : span - 1 - back + n]
            if positions.sequences.packed:
                read = read.masked_fill((positions.ids < back)[:, None], 0)
            v = v + weight * read
        if cache is not None:
            last = torch.arange(n, n + span - 1, device=u.device).expand(u.shape[0], -1)
            last = last if starts is None else last - starts[:, None]
            kept = seen.gather(1, last[..., None].expand(-1, -1, dim))
            advance(scan_state(cache), positions, n, recent=kept.to(recent.dtype))
        return v if starts is None else from_front(v[:, None], starts)[:, 0]

    def make_cache(self, memory: CacheMemory) -> ScanState:
        """An empty cache of the inputs that the next ones still read."""
        dim, span = self.weight.shape
        shape = (memory.batch, span - 1, dim)
        return ScanState({"recent": torch.zeros(shape, dtype=memory.dtype, device=memory.device)})


def _without_padding(x: Tensor, positions: Positions) -> Tensor:
    """Zeros in padding: projections would multiply a NaN there by zero, in the gradients of their weights."""
    return x if positions.mask is None else torch.where(positions.mask[..., None], x, 0)


def _head_sizes(dim: int, heads: int, head_dim: int | None, kv_heads: int | None) -> tuple[int, int]:
    if heads < 1 or dim < 1:
        raise ValueError(f"expected dim and heads ≥ 1, got dim={dim} and heads={heads}.")
    if head_dim is None and dim % heads:
        raise ValueError(f"expected heads to divide dim, got dim={dim} and heads={heads}; or give head_dim.")
    width = dim // heads if head_dim is None else head_dim
    if width < 1:
        raise ValueError(f"expected head_dim ≥ 1, got {head_dim}.")
    shared = heads if kv_heads is None else kv_heads
    if shared < 1 or heads % shared:
        raise ValueError(f"expected kv_heads to divide the {heads} heads, got {kv_heads}.")
    return width, shared


def _patterns(pattern: PatternLike | Sequence[PatternLike], heads: int) -> tuple[Pattern, ...]:
    if isinstance(pattern, str | Pattern) or callable(pattern):
        return (as_pattern(pattern),) * heads
    if len(pattern) != heads:
        raise ValueError(f"expected one pattern, or one for each of the {heads} heads, got {len(pattern)}.")
    return tuple(map(as_pattern, pattern))


def _check_options(rule: Rule, head_dim: int, rope: RopeSetting, backend: str | Backend) -> None:
    if rope is not None and not isinstance(rope, str) and (isinstance(rope, bool) or not rope > 0):
        raise ValueError(
            f"rope is the base of rotary positions: expected a number > 0 such as 10000.0, or None, got {rope!r}."
        )
    require_rope_fit(rule, rope, head_dim)
    if head_dim % 2 and rule.rotates(rope):
        raise ValueError(f"rotary positions turn pairs of numbers: expected an even head_dim, got {head_dim}.")
    if backend != "auto":
        find(backend)
        if rule.scan:
            raise ValueError(
                f"{rule} runs on scans, which choose by the device: expected backend='auto', got {backend!r}."
            )


def check_cache(cache: Cache, signature: object, batch: int, max_tokens: int | str | None) -> None:
    """A cache that this layer or model made, or one like it."""
    if cache.signature != signature:
        raise ValueError(f"expected a cache of this model, made of {signature}, got one made of {cache.signature}.")
    if cache.batch != batch:
        raise ValueError(f"expected a cache of {batch} sequences, got one of {cache.batch}.")
    if max_tokens is not None:
        raise ValueError("max_tokens is for a new cache: expected none beside a cache that exists.")


def _computed_in(dtype: torch.dtype, device: str) -> torch.dtype:
    """What a layer of this dtype computes in, under autocast or not."""
    autocast = dtype != torch.float64 and autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else dtype
