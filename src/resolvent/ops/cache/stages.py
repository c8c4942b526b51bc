"""The decode cache of a pattern: slots for its one stage, or for A's and B's of a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from resolvent.ops.cache.base import Cache
from resolvent.ops.cache.caches import Caches
from resolvent.ops.cache.slots import DecodeCache
from resolvent.patterns import Normalize, Pattern, PatternLike, as_pattern

if TYPE_CHECKING:
    from torch import Tensor

    from resolvent.ops.inputs import Inputs

SIDES = ("a", "b")


def decode_cache(
    pattern: PatternLike,
    batch: int,
    heads: int,
    dim: int,
    key_dim: int,
    *,
    max_tokens: int | str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    normalize: Normalize = "gate",
    kv_heads: int | None = None,
) -> Cache:
    """An empty cache for `extend`, of any pattern.

    Args:
        pattern: who reads whom. A pair keeps inputs in A's slots and outputs in B's: two caches, under "a" and "b".
        batch: sequences, B.
        heads: heads of the queries, H.
        dim: D of the values.
        key_dim: D' of queries and keys.
        max_tokens: how many tokens it is made for; its size is then final. Without, it grows (see `DecodeCache`).
        dtype: of what is kept.
        device: where.
        normalize: as in `mix`.
        kv_heads: heads of values and keys, if several heads share them [default: heads].

    Returns:
        A `DecodeCache`, or for a pair two of them as one cache. `nbytes` is known before the first token.

    >>> decode_cache("attention/first-order", batch=1, heads=4, dim=16, key_dim=16, max_tokens=100).nbytes
    50944
    """
    stages = as_pattern(pattern).stages
    caches = [
        DecodeCache(
            stage,
            batch,
            heads,
            dim,
            key_dim,
            max_tokens=max_tokens,
            dtype=dtype,
            device=device,
            normalize=normalize,
            kv_heads=kv_heads,
        )
        for stage in stages
    ]
    return caches[0] if len(caches) == 1 else Caches(dict(zip(SIDES, caches, strict=True)))


def stage_caches(cache: Cache) -> tuple[DecodeCache, ...]:
    """What `decode_cache` has made, stage by stage."""
    if isinstance(cache, DecodeCache):
        return (cache,)
    children = tuple(cache.values()) if isinstance(cache, Caches) and tuple(cache) == SIDES else ()
    caches = tuple(child for child in children if isinstance(child, DecodeCache))
    if len(caches) != len(SIDES):
        raise ValueError(f"expected a cache that decode_cache(pattern, …) has made, got {type(cache).__name__}.")
    return caches


def check_cache_fits(cache: Cache, inputs: Inputs, pattern: Pattern, normalize: str) -> None:
    """It was made for this pattern and for tensors of these sizes."""
    caches = stage_caches(cache)
    made_for = tuple(own.pattern for own in caches)
    if made_for != pattern.stages:
        raise ValueError(f"expected a cache of {pattern}, got one of {'/'.join(map(str, made_for))}.")
    for own in caches:
        has_keys = "keys_a" in own.tensors or "keys_b" in own.tensors  # without, their length does not matter
        key_dim = inputs.key_dim if has_keys else own.key_dim
        expected = (inputs.x.shape[0], inputs.heads, inputs.x.shape[-1], key_dim)
        actual = (own.batch, own.heads, own.dim, own.key_dim)
        if actual != expected:
            raise ValueError(f"expected a cache for B, H, D, D' = {expected}, got one for {actual}.")
        if own.kv_heads != inputs.x.shape[1]:
            raise ValueError(
                f"expected a cache with kv_heads={inputs.x.shape[1]}, as x has, got one with {own.kv_heads}."
            )
        if own.normalize != normalize:
            raise ValueError(f"expected a cache with normalize={normalize!r}, got one with {own.normalize!r}.")


def check_cache_dtype(cache: DecodeCache, x: Tensor) -> None:
    for name, tensor in cache.tensors.items():
        if name != "logs" and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise TypeError(
                f"expected the cache's {name} as {x.dtype} on {x.device}, got {tensor.dtype} on {tensor.device}."
            )
