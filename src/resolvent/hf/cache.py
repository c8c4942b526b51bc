"""The cache of a layer as transformers holds it: its verbs, on the cache of a mixer, of the pattern's own size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, final

import torch
from torch import Tensor
from transformers import Cache as CacheOfLayers
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, CacheLayerMixin, DynamicLayer

from resolvent.ops import Cache

LAYER_TYPE = "resolvent"


@final
class MixerCacheLayer(CacheLayerMixin):
    """What one layer keeps. It is empty until the layer first runs.

    `DynamicCache(config=model.config)` makes one for each layer, which grows as its pattern asks; those of a
    `StaticCache` are made for `max_cache_len` tokens, and their size is final.
    """

    _layer_type = LAYER_TYPE
    is_sliding = False
    supports_early_init = False  # it takes more than numbers of heads to make one

    def __init__(self, max_cache_len: int | None = None, **_: object) -> None:
        super().__init__()
        self.max_tokens = max_cache_len
        self.cache: Cache | None = None
        self.signature: object = None  # of what the cache is made of, by the layer that made it
        self.columns = 0  # of token ids that were seen, padding included: what transformers counts

    def opened(self, make: Callable[[int | None], Cache], signature: object, batch: int) -> Cache:
        """The cache, made now if there is none: `make` takes the number of tokens that it is for.

        One that was made for a layer with another signature raises an error.
        """
        if self.cache is None:
            self.cache, self.signature = make(self.max_tokens), signature
            self.is_initialized = True
        if self.signature != signature:
            raise ValueError(
                f"expected a cache of this model, made of {signature}, got one made of {self.signature}: make a new "
                "one with DynamicCache(config=model.config), or call its reset()."
            )
        if self.cache.batch != batch:
            raise ValueError(f"expected a cache of {batch} sequences, got one of {self.cache.batch}.")
        return self.cache

    def check_room(self, tokens: int) -> None:
        """Raise an error unless each row may come to hold so many tokens."""
        if self.max_tokens is not None and tokens > self.max_tokens:
            raise ValueError(
                f"this cache was made for max_cache_len={self.max_tokens:,} tokens, got {tokens:,}: make it with a "
                "larger max_cache_len, or as DynamicCache(config=model.config), which grows."
            )

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes

    def get_seq_length(self) -> int:
        return self.columns

    def get_max_length(self) -> int:
        return -1 if self.max_tokens is None else self.max_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Those of attention layers beside it, for which transformers asks the first layer."""
        return self.columns + query_length, 0

    def reset(self) -> None:
        self.cache, self.columns, self.is_initialized = None, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.cache = None if self.cache is None else self.cache.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.cache = None if self.cache is None else self.cache.repeat(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        rows = indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices
        self.cache = None if self.cache is None else self.cache.select(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, given as a negative number; an error says why where the pattern cannot."""
        if tokens_to_remove > 0:
            raise ValueError(f"expected the tokens to remove as a negative number, got {tokens_to_remove}.")
        if self.cache is not None and tokens_to_remove:
            self.cache.rewind((self.cache.positions + tokens_to_remove).tolist())
            self.columns += tokens_to_remove

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError(_NOT_KEYS)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(_NOT_KEYS)

    def offload(self) -> None:
        """Nothing: what a pattern keeps stays where it is."""

    def prefetch(self) -> None:
        """Nothing, as nothing was offloaded."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        other = type(self)(self.max_tokens)
        other.cache = None if self.cache is None else self.cache.clone()
        other.signature, other.columns, other.is_initialized = self.signature, self.columns, self.is_initialized
        return other

    def __repr__(self) -> str:
        return f"MixerCacheLayer({self.cache!r}, {self.columns} columns)"


_NOT_KEYS = "this layer of a cache belongs to a mixer, which keeps more than keys and values: attention cannot use it."


@final
class AttentionCacheLayer(DynamicLayer):
    """What an attention layer keeps beside mixers: it grows in a static cache, too.

    Static layers rely on masks that hide their empty slots, and transformers leaves these out where the other layers
    of a cache cannot be compiled.
    """

    _layer_type = "attention_beside_resolvent"

    def __init__(self, max_cache_len: int | None = None, **_: object) -> None:  # noqa: ARG002
        super().__init__()


for _layer in (MixerCacheLayer, AttentionCacheLayer):
    STATIC_LAYER_TYPE_MAPPING[_layer._layer_type] = _layer


def layer_of(cache: CacheOfLayers, index: int, count: int) -> MixerCacheLayer:
    """The layer of a cache that a caller holds, or an error that says which cache to make: it has `count` layers."""
    layers = getattr(cache, "layers", [])
    layer = layers[index] if index < len(layers) else None
    if not isinstance(layer, MixerCacheLayer) or len(layers) != count:
        lacking = f"without a cache of the pattern in layer {index}"
        reason = f"of {len(layers)} layers" if len(layers) > count else lacking
        raise ValueError(
            f"expected a cache that was made for this model of {count} layers, got {type(cache).__name__} {reason}: "
            "make it with DynamicCache(config=model.config), or StaticCache(config=model.config, max_cache_len=…)."
        )
    return layer
