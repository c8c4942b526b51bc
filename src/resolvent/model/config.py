"""What a model is, as a value: its shape, a pattern and a rule for each layer. And the paper's table of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resolvent.analysis.coefficients import Coefficients, coefficients, fit
from resolvent.patterns import Pattern, PatternError, pattern
from resolvent.patterns.errors import closest

Layered = str | tuple[str | tuple[str, ...], ...]  # for all layers, or one entry per layer; an entry may be per head


def _frozen(value: Any) -> Any:
    """Lists as tuples, patterns and rules by their spelling."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(entry) for entry in value)
    return str(value) if isinstance(value, Pattern | Coefficients) else value


@dataclass(frozen=True)
class ModelConfig:
    """GPT-2's shape: blocks of a mixer and an MLP behind layer norms, token embeddings shared with the head.

    pattern        who reads whom: for all layers, or a list with one entry per layer (itself a list with one per head)
    coefficients   how much: a rule for all layers, or a list with one per layer
    ff_dim         inner dimension of the MLP, 4 × dim unless given
    kv_heads       keys and values that heads share, as many as heads unless given
    rope           base of the rotary positions, or None for none
    vocab_multiple rows of the embedding are padded to a multiple of this, which matrix units like; logits are not
    init_std       standard deviation of weights and embeddings at the start; 0.02 · √(768 / dim) unless given
    """

    vocab_size: int = 256
    layers: int = 4
    dim: int = 128
    heads: int = 4
    pattern: Layered = "exponential+cache"
    coefficients: str | tuple[str, ...] = "softmax"
    ff_dim: int | None = None
    kv_heads: int | None = None
    rope: float | None = 10_000.0
    bias: bool = True
    vocab_multiple: int = 1
    init_std: float | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "dim", "heads", "vocab_multiple"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"expected {name} to be an integer ≥ 1, got {value!r}.")
        for name, low in (("ff_dim", 1), ("kv_heads", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < low):
                raise ValueError(f"expected {name} to be an integer ≥ {low} or None, got {value!r}.")
        if self.dim % self.heads or self.heads % (self.kv_heads or 1):
            raise ValueError(
                f"expected heads to divide dim, and kv_heads to divide heads, "
                f"got dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}."
            )
        if self.rope is not None and (isinstance(self.rope, bool | str) or not self.rope > 0):
            raise ValueError(f"expected rope to be a number > 0, or None, got {self.rope!r}.")
        object.__setattr__(self, "pattern", _frozen(self.pattern))
        object.__setattr__(self, "coefficients", _frozen(self.coefficients))
        for name in ("pattern", "coefficients"):
            given = getattr(self, name)
            if not isinstance(given, str) and len(given) != self.layers:
                raise ValueError(
                    f"expected one {name} for all layers, or {self.layers}, one for each; got {len(given)}."
                )
        for layer in range(self.layers):
            for spec in self.patterns_of(layer):
                fit(coefficients(self.coefficients_of(layer)), pattern(spec))

    def patterns_of(self, layer: int) -> tuple[str, ...]:
        """The pattern of each head, or the one of all."""
        spec = self.pattern if isinstance(self.pattern, str) else self.pattern[layer]
        return (spec,) if isinstance(spec, str) else spec

    def coefficients_of(self, layer: int) -> str:
        return self.coefficients if isinstance(self.coefficients, str) else self.coefficients[layer]

    @property
    def inner_dim(self) -> int:
        return self.ff_dim or 4 * self.dim

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def std(self) -> float:
        return float(0.02 * (768 / self.dim) ** 0.5) if self.init_std is None else self.init_std

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, complete: bool = False) -> ModelConfig:
        """The config with these values. An unknown name is refused; if `complete`, a missing one, too."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(
                    f"unknown setting '{name}' of a model: expected {', '.join(known)}.{closest(name, known)}"
                )
        missing = [name for name in known if name not in values]
        if complete and missing:
            raise ValueError(f"expected every setting of a model, and {', '.join(missing)} is missing.")
        return cls(**values)


@dataclass(frozen=True)
class Training:
    """The paper's table of how its models were trained. `batch` counts sequences, of at most `context` tokens."""

    steps: int
    warmup: int
    learning_rate: float
    batch: int
    context: int
    weight_decay: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.95
    clip: float = 1.0


_GPT2 = ModelConfig(vocab_size=50_257, layers=12, dim=768, heads=12, pattern="attention", vocab_multiple=256,
                    init_std=0.02)  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(),
    "synthetic-4m": ModelConfig(vocab_size=8192, layers=2, dim=256, heads=4),
    "gpt2-125m": _GPT2,
    "gpt2-355m": dataclasses.replace(_GPT2, layers=24, dim=1024, heads=16),
    "gpt2-775m": dataclasses.replace(_GPT2, layers=36, dim=1280, heads=20),
}
TRAINING: dict[str, Training] = {
    "synthetic-4m": Training(20_000, 2000, 3e-3, 1024, 256, beta_2=0.98),
    "gpt2-125m": Training(20_000, 1000, 5e-4, 128, 1024),
    "gpt2-355m": Training(25_000, 2500, 2.5e-4, 128, 2048),
    "gpt2-775m": Training(25_000, 2500, 2e-4, 256, 2048),
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """A model by name, with settings changed: `preset("gpt2-125m", pattern="quadratic+cache")`."""
    if name not in PRESETS:
        raise PatternError(f"unknown preset '{name}': expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    return ModelConfig.from_dict(PRESETS[name].to_dict() | changes)
