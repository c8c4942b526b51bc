"""Models that exist, with mixers in place of attention: they start as what they were, and learn to use feedback."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import ClassVar, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers import Cache as CacheOfLayers

from resolvent.hf.attention import GPT2Mixing, LlamaMixing
from resolvent.hf.cache import AttentionCacheLayer, MixerCacheLayer
from resolvent.hf.folders import FolderModel
from resolvent.hf.layout import check_past, layout_of
from resolvent.patterns import PatternLike, as_pattern

Patterns = list[str | None]


class ReplacedConfig:
    """What the config of a model whose attention was replaced adds: a pattern for each layer, None where none was."""

    replaced: list | None  # type: ignore[type-arg]
    num_hidden_layers: int

    @property
    def patterns(self) -> Patterns:
        return [None] * self.num_hidden_layers if self.replaced is None else self.replaced

    @property
    def layer_types(self) -> list[str]:
        """Which kind of cache each layer has."""
        kinds = (AttentionCacheLayer, MixerCacheLayer)
        return [kinds[pattern is not None]._layer_type for pattern in self.patterns]

    def validate_layer_type(self) -> None:
        """Some layers are of a type that transformers does not list."""
        if len(self.patterns) != self.num_hidden_layers:
            raise ValueError(
                f"expected {self.num_hidden_layers} patterns, one for each layer, got {len(self.patterns)}."
            )

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing, as of the models."""


@final
@strict
class ReplacedGPT2Config(ReplacedConfig, GPT2Config):
    """`GPT2Config` and `replaced`: a pattern for each layer, None where attention stays."""

    model_type = "resolvent_gpt2"
    replaced: list | None = None  # type: ignore[type-arg]


@final
@strict
class ReplacedLlamaConfig(ReplacedConfig, LlamaConfig):
    """`LlamaConfig` and `replaced`: a pattern for each layer, None where attention stays."""

    model_type = "resolvent_llama"
    replaced: list | None = None  # type: ignore[type-arg]


class ReplacedModel(FolderModel):
    """A language model of transformers whose attention layers mix by patterns, where its config says so.

    mixing     what takes the place of an attention layer
    attention  the name under which a block has it
    """

    mixing: ClassVar[type[GPT2Mixing] | type[LlamaMixing]]
    attention: ClassVar[str]
    required = ".feedback."

    def __init__(self, config: ReplacedGPT2Config | ReplacedLlamaConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # transformers takes it from the name of the class, and warns of GPT-2's
        for index, pattern in enumerate(config.patterns):
            if pattern is not None:
                layer = self.mixing(config, layer_idx=index)
                layer.replace(as_pattern(pattern))
                setattr(self.blocks()[index], self.attention, layer)
        self.base_model.register_forward_pre_hook(_add_layout, with_kwargs=True)
        self.post_init()

    def blocks(self) -> nn.ModuleList:
        return self.base_model.h if hasattr(self.base_model, "h") else self.base_model.layers

    def mixing_layers(self) -> list[GPT2Mixing | LlamaMixing]:
        """Those that took the place of attention."""
        layers = [getattr(block, self.attention) for block in self.blocks()]
        return [layer for layer in layers if isinstance(layer, self.mixing)]


@final
class ReplacedGPT2LMHeadModel(ReplacedModel, GPT2LMHeadModel):
    """GPT-2 with mixers in place of attention; `replace_attention` makes one."""

    config_class = ReplacedGPT2Config
    mixing, attention = GPT2Mixing, "attn"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "ReplacedGPT2Config",
        "AutoModelForCausalLM": "ReplacedGPT2LMHeadModel",
    }


@final
class ReplacedLlamaForCausalLM(ReplacedModel, LlamaForCausalLM):
    """Llama with mixers in place of attention; `replace_attention` makes one."""

    config_class = ReplacedLlamaConfig
    mixing, attention = LlamaMixing, "self_attn"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "ReplacedLlamaConfig",
        "AutoModelForCausalLM": "ReplacedLlamaForCausalLM",
    }


_REPLACED: dict[type[PreTrainedModel], type[ReplacedModel]] = {
    GPT2LMHeadModel: ReplacedGPT2LMHeadModel,
    ReplacedGPT2LMHeadModel: ReplacedGPT2LMHeadModel,
    LlamaForCausalLM: ReplacedLlamaForCausalLM,
    ReplacedLlamaForCausalLM: ReplacedLlamaForCausalLM,
}


def replace_attention(
    model: PreTrainedModel,
    pattern: PatternLike,
    layers: Iterable[int] | None = None,
    *,
    feedback: Literal["copy", "fresh"] = "copy",
) -> ReplacedModel:
    """A copy of a model of transformers with mixers in place of attention. The model itself stays as it is.

    The queries, keys, values and outputs of attention become those of A. B is new: its gates are closed at first, so
    that with a pattern whose A reads all the past, such as "dense" or "attention/exponential", the copy computes what
    the model does; a sparser one starts from attention to the positions that it reads, and is trained from there.

    Args:
        model: `GPT2LMHeadModel` or `LlamaForCausalLM`, or what this function made of one, for further layers.
        pattern: who reads whom, in the layers that are replaced.
        layers: their numbers [default: all].
        feedback: whether the queries and keys of B start as copies of attention's, or fresh, at random.

    Returns:
        A model that trains, generates and saves as the original does; Auto classes load its folders.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2))
    >>> replace_attention(model, "exponential+cache", layers=[1]).config.replaced
    [None, 'exponential+cache']
    """
    kind, config = _kind_of(model), model.config
    chosen = _checked_layers(layers, config.num_hidden_layers)
    before = config.patterns if isinstance(config, ReplacedConfig) else [None] * config.num_hidden_layers
    patterns = [as_pattern(pattern).spelling if i in chosen else kept for i, kept in enumerate(before)]
    settings = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "auto_map")}
    replaced = kind(kind.config_class(**settings | {"replaced": patterns}))
    _load(replaced, model.state_dict(), chosen)
    if feedback == "copy":
        for layer in replaced.mixing_layers():
            if layer.layer_idx in chosen:
                layer.copy_to_feedback()
    elif feedback != "fresh":
        raise ValueError(f"expected feedback to start as 'copy' or 'fresh', got {feedback!r}.")
    replaced.generation_config = copy.deepcopy(model.generation_config)
    return replaced.to(model.device, model.dtype).train(model.training)


def _kind_of(model: PreTrainedModel) -> type[ReplacedModel]:
    kind = _REPLACED.get(type(model))
    if kind is None:
        known = " or ".join(each.__name__ for each in (GPT2LMHeadModel, LlamaForCausalLM))
        raise TypeError(f"expected a model whose attention can be replaced, {known}, got {type(model).__name__}.")
    if getattr(model.config, "add_cross_attention", False):
        raise ValueError("expected a model without cross-attention, got one with add_cross_attention=True.")
    return kind


def _checked_layers(layers: Iterable[int] | None, count: int) -> set[int]:
    chosen = set(range(count) if layers is None else layers)
    if not chosen or not all(isinstance(i, int) and 0 <= i < count for i in chosen):
        raise ValueError(f"expected numbers of layers from 0 to {count - 1}, got {sorted(chosen)}.")
    return chosen


def _load(model: ReplacedModel, weights: dict[str, Tensor], chosen: set[int]) -> None:
    """Weights of the original; feedback that exists is kept where its layer is not replaced again."""
    fresh = [f".{i}.{model.attention}.feedback." for i in chosen]
    kept = {name: t for name, t in weights.items() if not any(part in name for part in fresh)}
    missing, unexpected = model.load_state_dict(kept, strict=False)
    if unexpected or any(not any(part in name for part in fresh) for name in missing):
        raise ValueError(
            f"expected the weights of {type(model).__name__}, got {[*missing, *unexpected][:4]} differing."
        )


def _add_layout(
    module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[()], dict[str, object]]:
    """Before a pass: tell the layers where sequences begin, which their own mask does not say."""
    named = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
    x = named["input_ids"] if named.get("input_ids") is not None else named["inputs_embeds"]
    cache = named.get("past_key_values")
    seen = 0 if cache is None else int(cache.get_seq_length())  # type: ignore[attr-defined]
    mask, position_ids, ends = (named.get(name) for name in ("attention_mask", "position_ids", "cu_seq_lens_q"))
    layout = layout_of(tuple(x.shape[:2]), mask, position_ids, ends, seen)  # type: ignore[arg-type,attr-defined]
    if seen:
        _check_past(cache, mask, position_ids, seen)  # type: ignore[arg-type]
    wanted = named.get("use_cache")
    if (cache is not None or wanted) and not layout.fits_cache:
        raise ValueError(
            "a cache goes on from the last column: expected padding on the left and no packed sequences, or "
            "use_cache=False."
        )
    if module.training and module.gradient_checkpointing:  # then transformers gives no cache to the layers
        if cache is not None:
            raise ValueError(
                "with gradient checkpointing, layers compute twice and have no cache: expected model.eval() before "
                "generating, or use_cache=False."
            )
        wanted = False
    if wanted is None:
        wanted = cache is not None or (module.config.use_cache and layout.fits_cache and not torch.is_grad_enabled())  # type: ignore[union-attr]
    return (), named | {"layout": layout, "use_cache": wanted}


def _check_past(cache: CacheOfLayers, mask: Tensor | None, position_ids: Tensor | None, seen: int) -> None:
    """A cache goes on with tokens that it has not seen. Positions may have gaps here, as the original's may."""
    mixers = [layer for layer in getattr(cache, "layers", ()) if isinstance(layer, MixerCacheLayer)]
    if not mixers or mixers[0].cache is None:
        return  # whoever uses it says what is wrong
    before = mixers[0].cache.positions
    check_past(mask, seen, before)
    if position_ids is not None and (position_ids[:, -1].cpu().numpy() < before).any():
        raise ValueError(
            f"the cache has seen positions up to {before.max() - 1}: expected position_ids from there on, got some up "
            f"to {int(position_ids.max())}; give tokens that the cache has not seen, or a new one."
        )


for _model in (ReplacedGPT2LMHeadModel, ReplacedLlamaForCausalLM):
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    AutoModelForCausalLM.register(_model.config_class, _model)
