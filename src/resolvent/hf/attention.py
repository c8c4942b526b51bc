"""Attention layers of GPT-2 and Llama that mix by a pattern: their projections make A; B is new, closed at first.

The names of their weights stay as they were; those of `feedback` come on top.
"""

from __future__ import annotations

from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from transformers import Cache as CacheOfLayers
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

import resolvent as rv
from resolvent.coefficients.gates import TokenGate, at_least_float32
from resolvent.hf.cache import MixerCacheLayer, layer_of
from resolvent.hf.layout import BatchLayout
from resolvent.ops import Cache
from resolvent.ops.inputs import QueriesAndKeys, Scores
from resolvent.patterns import Pattern

_STD = 0.02  # of fresh weights, as GPT-2's and Llama's


@final
class OpeningGate(nn.Module):
    """A gate per token and head, times a number per head that starts at 0: feedback is closed, and learns to open.

    That number is held in [0, 1], but its gradient is taken as if nothing held it, so that a head that wants less than
    none can still change its mind; a gradient that stops at 0 would close it forever.
    """

    no_weight_decay = ("opening",)

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.opening = nn.Parameter(torch.zeros(heads))
        self.token = TokenGate(dim, heads, 0.5)

    def forward(self, u: Tensor) -> Tensor:
        """(B, N, dim) → (B, heads, N), in float32 or better."""
        free = at_least_float32(self.opening)
        held = free + (free.clamp(0, 1) - free).detach()
        return held[:, None] * self.token(u)


@final
class Feedback(nn.Module):
    """B beside an A that attention has become: queries and keys, of as many heads as A's, and gates. Nothing where the
    pattern has no feedback.
    """

    def __init__(self, pattern: Pattern, dim: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.pattern, self.kv_heads, self.head_dim = pattern, kv_heads, head_dim
        needs = pattern.needs("gate")
        self.queries = nn.Linear(dim, heads * head_dim) if needs.b else None
        self.keys = nn.Linear(dim, kv_heads * head_dim) if needs.b else None
        self.gate = OpeningGate(dim, heads) if needs.gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.queries, self.keys):
            if linear is not None:
                nn.init.normal_(linear.weight, std=_STD)
                nn.init.zeros_(linear.bias)

    @torch.no_grad()
    def copy_from(self, queries: tuple[Tensor, Tensor | None], keys: tuple[Tensor, Tensor | None]) -> None:
        """Start with these weights, (out, in), and biases."""
        for linear, (weight, bias) in ((self.queries, queries), (self.keys, keys)):
            if linear is not None:
                linear.weight.copy_(weight)
                if bias is not None:
                    linear.bias.copy_(bias)

    def pair(self, hidden: Tensor) -> QueriesAndKeys | None:
        """Queries and keys, (B, heads, N, D) each; None where B reads one token, or there is none."""
        if self.queries is None or self.keys is None:
            return None
        return self._heads(self.queries(hidden)), self._heads(self.keys(hidden))

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def mix(
        self, hidden: Tensor, a: QueriesAndKeys, b: QueriesAndKeys | None, values: Tensor,
        layer: MixerCacheLayer | None, layout: BatchLayout, scale: float,
    ) -> Tensor:  # fmt: skip
        """(I - B)^-1 A on values (B, kv_heads, N, D), after those that the cache has seen: (B, N, heads · D)."""
        gate = None if self.gate is None else self.gate(hidden)
        scores = Scores(a if self.pattern.needs("gate").a else None, b, gate)
        if layer is not None:
            heads = a[0].shape[1]
            signature = f"{self.pattern} ({heads} heads of {self.head_dim}, {self.kv_heads} of keys)"
            cache = layer.opened(partial(self._make_cache, values, heads), signature, len(values))
            layer.check_room(int((cache.positions - (layout.start or 0)).max(initial=0)) + values.shape[2])
            y = rv.extend(values, self.pattern, cache, *scores, scale=scale, start=layout.start)
            layer.columns += values.shape[2]
        elif layout.cu_seqlens is None:
            y = rv.mix(values, self.pattern, *scores, scale=scale, start=layout.start)
        else:
            gates = None if gate is None else _fold(gate[..., None])[..., 0]
            flat = Scores(_end_to_end(scores.a), _end_to_end(scores.b), gates)
            y = rv.mix(_fold(values), self.pattern, *flat, scale=scale, cu_seqlens=layout.cu_seqlens)
            y = y[0].unflatten(1, (len(values), -1)).transpose(0, 1)
        return y.transpose(1, 2).flatten(2)

    def _make_cache(self, values: Tensor, heads: int, max_tokens: int | None) -> Cache:
        return rv.decode_cache(
            self.pattern, len(values), heads, self.head_dim, self.head_dim, max_tokens=max_tokens, dtype=values.dtype,
            device=values.device, kv_heads=self.kv_heads,
        )  # fmt: skip


def _fold(t: Tensor) -> Tensor:
    """(B, H, N, D) → (1, H, B·N, D): rows laid end to end."""
    return t.transpose(0, 1).flatten(1, 2)[None]


def _end_to_end(pair: QueriesAndKeys | None) -> QueriesAndKeys | None:
    return None if pair is None else (_fold(pair[0]), _fold(pair[1]))


def _layer(cache: CacheOfLayers | None, index: int, count: int) -> MixerCacheLayer | None:
    return None if cache is None else layer_of(cache, index, count)


@final
class GPT2Mixing(GPT2Attention):
    """GPT-2's attention with a pattern. Positions are in the embeddings; weights of attention are not dropped out."""

    def replace(self, pattern: Pattern) -> None:
        """What `__init__` would do with a pattern, if it could be given one."""
        self.feedback = Feedback(pattern, self.embed_dim, self.num_heads, self.num_heads, self.head_dim)

    def copy_to_feedback(self) -> None:
        weight, bias = self.c_attn.weight.T, self.c_attn.bias
        queries, keys = ((weight[i : i + self.embed_dim], bias[i : i + self.embed_dim]) for i in (0, self.embed_dim))
        self.feedback.copy_from(queries, keys)

    def forward(
        self, hidden_states: Tensor, past_key_values: CacheOfLayers | None = None, *_: object,
        layout: BatchLayout | None = None, **__: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        split = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        queries, keys, values = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in split)
        layer = _layer(past_key_values, self.layer_idx, self.config.num_hidden_layers)
        b = self.feedback.pair(hidden_states)
        mixed = self.feedback.mix(
            hidden_states, (queries, keys), b, values, layer, layout or BatchLayout(), self.scaling
        )
        return self.resid_dropout(self.c_proj(mixed)), None


@final
class LlamaMixing(LlamaAttention):
    """Llama's attention with a pattern: grouped heads, and its own rotary positions for B, too."""

    def replace(self, pattern: Pattern) -> None:
        """What `__init__` would do with a pattern, if it could be given one."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.feedback = Feedback(pattern, config.hidden_size, heads, kv_heads, self.head_dim)

    def copy_to_feedback(self) -> None:
        self.feedback.copy_from((self.q_proj.weight, self.q_proj.bias), (self.k_proj.weight, self.k_proj.bias))

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,  # noqa: ARG002
        past_key_values: CacheOfLayers | None = None, *, layout: BatchLayout | None = None, **_: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        projected = (projection(hidden_states) for projection in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys, values = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in projected)
        a = apply_rotary_pos_emb(queries, keys, *position_embeddings)
        b = self.feedback.pair(hidden_states)
        b = None if b is None else apply_rotary_pos_emb(*b, *position_embeddings)
        layer = _layer(past_key_values, self.layer_idx, self.config.num_hidden_layers)
        mixed = self.feedback.mix(hidden_states, a, b, values, layer, layout or BatchLayout(), self.scaling)
        return self.o_proj(mixed), None
