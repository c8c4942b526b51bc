"""`LanguageModel` as a model of transformers: the same modules, called as its tools call models."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, GenerationMixin
from transformers import Cache as CacheOfLayers
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from resolvent.coefficients import Positions, positions_of
from resolvent.hf.cache import MixerCacheLayer, layer_of
from resolvent.hf.config import ResolventConfig
from resolvent.hf.folders import FolderModel
from resolvent.hf.layout import BatchLayout, check_past, check_positions, layout_of
from resolvent.model import LanguageModel
from resolvent.model.fused import next_logits
from resolvent.model.language_model import Block
from resolvent.ops import Caches


class ResolventPreTrainedModel(FolderModel):
    """What both models share."""

    config: ResolventConfig
    config_class = ResolventConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "ResolventConfig",
        "AutoModel": "ResolventModel",
        "AutoModelForCausalLM": "ResolventForCausalLM",
    }
    required = "stack."
    _no_split_modules = ("Block",)
    _skip_keys_device_placement = ("past_key_values",)
    _can_record_outputs: ClassVar[dict[str, type[nn.Module]]] = {"hidden_states": Block}


class PreparedCall(NamedTuple):
    """A call as the library understands it: where its rows stand, and the caches that they go on from."""

    layout: BatchLayout
    positions: Positions
    cache: CacheOfLayers | None
    layers: list[MixerCacheLayer]
    caches: Caches | None


@final
class ResolventModel(ResolventPreTrainedModel):
    """Tokens → what the head reads, (B, N, dim): the embedding, blocks and norm of a `LanguageModel`, its `stack`."""

    def __init__(self, config: ResolventConfig) -> None:
        super().__init__(config)
        self.stack = LanguageModel(config.model_config)
        self.gradient_checkpointing = False
        for block in self.stack.blocks:
            block.dropout = config.dropout  # type: ignore[assignment]
        for module in self.stack.modules():
            module._is_hf_initialized = True  # type: ignore[assignment]  # by itself
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.stack.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """New embeddings, as `resize_token_embeddings` makes them: they are all of the vocabulary."""
        self.stack.embedding = value
        self.config.vocab_size, self.config.vocab_multiple = value.num_embeddings, 1
        self.stack.config = self.config.model_config

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CacheOfLayers | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        use_cache: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **_: object,
    ) -> BaseModelOutputWithPast:
        """Run the new tokens, after those that are in a cache.

        Args:
            input_ids: (B, N) the new tokens, or `inputs_embeds`: (B, N, dim).
            attention_mask: (B, columns seen + N), zero in padding, which stands before or after a sequence.
            position_ids: those of packed sequences, which count from 0 in each; others follow from mask and cache.
            past_key_values: a cache made with `DynamicCache(config=model.config)`, or a `StaticCache`.
            inputs_embeds: instead of tokens.
            use_cache: whether to make a cache [default: as in the config, where no gradient is asked for].
            cu_seq_lens_q: 0 and the ends of packed sequences, in a batch of one.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected input_ids or inputs_embeds, and not both.")
        if inputs_embeds is None:
            if not torch.compiler.is_compiling():
                self.stack.check_tokens(input_ids)  # type: ignore[arg-type]
            inputs_embeds = self.stack.embedding(input_ids)
        batch, n = inputs_embeds.shape[:2]
        call = self.prepare(inputs_embeds, attention_mask, position_ids, past_key_values, use_cache, cu_seq_lens_q)
        x = inputs_embeds if call.layout.cu_seqlens is None else inputs_embeds.reshape(1, batch * n, -1)
        if call.positions.mask is not None:
            x = torch.where(call.positions.mask[..., None], x, 0)
        self.stack.recompute = self.gradient_checkpointing
        hidden = self.stack.at(dropout(x, self.config.dropout, self.training), call.positions, call.caches)
        for layer in call.layers:
            layer.columns += n
        return BaseModelOutputWithPast(hidden.reshape(inputs_embeds.shape), past_key_values=call.cache)

    def prepare(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CacheOfLayers | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> PreparedCall:
        """Check the arguments of a call on x, (B, N, …), and make room in the caches."""
        (batch, n), seen = x.shape[:2], 0 if past_key_values is None else past_key_values.get_seq_length()
        layout = layout_of((batch, n), attention_mask, position_ids, cu_seqlens, seen)
        cache = self._cache_for(past_key_values, use_cache, layout)
        count = self.config.layers
        layers = [] if cache is None else [layer_of(cache, i, count) for i in range(count)]
        caches = self._open(layers, batch, x.device) if layers else None
        before = np.zeros(batch, dtype=np.int64) if caches is None else caches.positions
        check_past(attention_mask, seen, before)
        check_positions(position_ids, layout, n, before)
        if layout.cu_seqlens is None:
            positions = positions_of(batch, n, x.device, None, layout.start, before)
        else:
            positions = positions_of(1, batch * n, x.device, layout.cu_seqlens)
        if caches is not None:
            layers[0].check_room(positions.longest)
            caches.reserve(positions.longest)  # in all layers, or an error before anything is written
        return PreparedCall(layout, positions, cache, layers, caches)

    def _cache_for(
        self, given: CacheOfLayers | None, use_cache: bool | None, layout: BatchLayout
    ) -> CacheOfLayers | None:
        """The cache that was given, or a new one where it is wanted."""
        default = self.config.use_cache and layout.fits_cache and not torch.is_grad_enabled()
        if given is None and not (default if use_cache is None else use_cache):
            return None
        if not layout.fits_cache:
            raise ValueError(
                "a cache goes on from the last column: expected padding on the left and no packed sequences, or "
                "use_cache=False."
            )
        return DynamicCache(config=self.config) if given is None else given

    def _open(self, layers: list[MixerCacheLayer], batch: int, device: torch.device) -> Caches:
        """The caches of all layers as the one of a `LanguageModel`."""
        pairs = enumerate(zip(layers, self.stack.mixers, strict=True))
        return Caches({
            str(i): layer.opened(partial(mixer.make_cache, batch, device=device), mixer.cache_signature, batch)
            for i, (layer, mixer) in pairs
        })  # fmt: skip


@final
class ResolventForCausalLM(ResolventPreTrainedModel, GenerationMixin):
    """A language model for `generate`, `Trainer` and whatever else takes models of transformers.

    >>> model = ResolventForCausalLM(ResolventConfig(layers=2, pattern="quadratic+cache"))
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False).shape
    torch.Size([1, 8])
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.stack.embedding.weight"}

    def __init__(self, config: ResolventConfig) -> None:
        super().__init__(config)
        self.model = ResolventModel(config)
        self.lm_head = nn.Linear(config.dim, config.model_config.embedding_rows, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CacheOfLayers | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: object,
    ) -> CausalLMOutputWithPast:
        """Logits of the next tokens, and with labels (B, N) the loss of predicting each from those before it.

        Args:
            input_ids: as `ResolventModel` takes it, and the arguments that are not listed here.
            attention_mask: zero in padding.
            position_ids: those of packed sequences.
            past_key_values: a cache.
            inputs_embeds: instead of tokens.
            labels: the tokens themselves, -100 where they do not count; they are shifted here.
            use_cache: whether to make a cache.
            logits_to_keep: after the last so many columns, or after these; 0 for all.
            kwargs: what the loss takes, such as `num_items_in_batch`.
        """
        arguments = (attention_mask, position_ids, past_key_values)
        single = input_ids is not None and input_ids.shape[1] == 1 and labels is None
        if (
            single
            and past_key_values is not None
            and not kwargs.get("output_hidden_states", self.config.output_hidden_states)
        ):
            logits = self._next_logits(input_ids, *arguments)  # type: ignore[arg-type]
            if logits is not None:
                return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
        outputs = self.model(input_ids, *arguments, inputs_embeds, use_cache=use_cache, **kwargs)
        hidden = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        logits = self.lm_head(hidden)[..., : self.config.vocab_size]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss, logits, outputs.past_key_values, outputs.hidden_states)

    def _next_logits(
        self, tokens: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: CacheOfLayers
    ) -> Tensor | None:
        """By the one compiled function that decodes whole models, where it can; None if modules must do it."""
        stack = self.model.stack
        if self.lm_head.weight is not stack.embedding.weight or torch.is_grad_enabled():
            return None
        stack.check_tokens(tokens)
        call = self.model.prepare(tokens, mask, position_ids, cache)
        if call.layout.start is not None or call.caches is None:
            return None
        logits = next_logits(stack, tokens, call.caches, (self.model, self.lm_head, stack.embedding))
        for layer in call.layers if logits is not None else []:
            layer.columns += 1
        return logits


AutoModel.register(ResolventConfig, ResolventModel)
AutoModelForCausalLM.register(ResolventConfig, ResolventForCausalLM)
