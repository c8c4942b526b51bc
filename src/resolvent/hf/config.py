"""`ModelConfig` in the form that transformers saves and loads."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from resolvent.hf.cache import LAYER_TYPE
from resolvent.model import ModelConfig

_SETTINGS = tuple(field.name for field in fields(ModelConfig))


@strict
class ResolventConfig(PreTrainedConfig):
    """The settings of `ModelConfig`, by the same names, and what transformers adds.

    dropout              in training: of embeddings, and of what each mixer and each MLP adds
    use_cache            whether a forward pass without gradients returns a cache
    tie_word_embeddings  whether the head has the weights of the embedding, as a `LanguageModel` has it

    >>> ResolventConfig(layers=2, pattern=["local:8", "exponential+cache"]).num_hidden_layers
    2
    """

    model_type = "resolvent"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
    }

    vocab_size: int = 256
    layers: int = 4
    dim: int = 128
    heads: int = 4
    pattern: str | list | tuple = "exponential+cache"  # type: ignore[type-arg]  # checked by ModelConfig
    rule: str | list | tuple = "softmax"  # type: ignore[type-arg]
    ff_dim: int | None = None
    kv_heads: int | None = None
    rope: float | int | str | None = 10_000.0
    bias: bool = True
    vocab_multiple: int = 1
    init_std: float | int | None = None
    dropout: float | int = 0.0
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: object) -> None:
        settings = self.model_config.to_dict()  # or an error that says which setting is wrong
        for name in ("pattern", "rule"):
            setattr(self, name, settings[name])  # by their spellings, which JSON can hold
        if not 0 <= self.dropout < 1:
            raise ValueError(f"expected 0 ≤ dropout < 1, got {self.dropout}.")
        super().__post_init__(**kwargs)

    @property
    def model_config(self) -> ModelConfig:
        """The same settings for `LanguageModel`."""
        return ModelConfig.from_dict({name: getattr(self, name) for name in _SETTINGS})

    @property
    def initializer_range(self) -> float:
        """The standard deviation of initial weights, of a head of its own, too."""
        return self.model_config.std

    @classmethod
    def from_model_config(cls, config: ModelConfig, **others: object) -> ResolventConfig:
        """The settings of a `LanguageModel`, and others by name, such as `dropout` or `eos_token_id`."""
        return cls(**config.to_dict(), **others)

    @property
    def layer_types(self) -> list[str]:
        """Which kind of cache each layer has."""
        return [LAYER_TYPE] * self.layers

    def validate_layer_type(self) -> None:
        """Layers are of a type that transformers does not list."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing, as of the models."""


AutoConfig.register(ResolventConfig.model_type, ResolventConfig)
