"""What a model is, as a value: its shape, a pattern and a rule for each layer. And the paper's table of models."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resolvent.errors import SettingError, at_most, closest, is_integer, shortened
from resolvent.fields import check_names, field_names
from resolvent.patterns import Pattern, PatternLike, as_pattern
from resolvent.rules import Rule, as_rule, require_fit
from resolvent.rules.rope import BASE, RopeSetting, as_rope, require_rope_fit

# For all layers, or one entry per layer; an entry may have one pattern per head.
PatternSetting = PatternLike | Sequence[PatternLike | Sequence[PatternLike]]
RuleSetting = str | Rule | Sequence[str | Rule]

MOST_LAYERS = 10_000
MOST_PATTERNS = 10_000  # different ones: parsing as many takes a second
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class ModelConfig:
    """GPT-2's shape: blocks of a mixer and an MLP behind layer norms, token embeddings shared with the head.

    pattern        who reads whom: for all layers, or a list with one entry per layer (itself a list with one per head)
    rule           how A and B are parameterized: a rule for all layers, or a list with one per layer
    ff_dim         inner dimension of the MLP [default: 4 × dim]
    kv_heads       sets of keys and values that heads share [default: heads]
    rope           base of the rotary positions, None for none, or a spelling: linear:factor=8, ntk:factor=8,
                   near:within=64 or capped:within=255 (docs/coefficients.md)
    vocab_multiple rows of the embedding are padded to a multiple of this, which matrix units like; logits are not
    init_std       standard deviation of initial weights and embeddings [default: 0.02 · √(768 / dim)]

    >>> ModelConfig(layers=2, pattern=["local:8", "exponential+cache"]).inner_dim
    512
    """

    vocab_size: int = 256
    layers: int = 4
    dim: int = 128
    heads: int = 4
    pattern: PatternSetting = "exponential+cache"
    rule: RuleSetting = "softmax"
    ff_dim: int | None = None
    kv_heads: int | None = None
    rope: RopeSetting = BASE
    bias: bool = True
    vocab_multiple: int = 1
    init_std: float | None = None

    def __post_init__(self) -> None:
        largest = {
            "vocab_size": _LARGEST,
            "layers": MOST_LAYERS,
            "dim": _LARGEST,
            "heads": _LARGEST,
            "vocab_multiple": _LARGEST,
            "ff_dim": _LARGEST,
            "kv_heads": _LARGEST,
        }
        for name, most in largest.items():
            value, optional = getattr(self, name), name in ("ff_dim", "kv_heads")
            if not (optional and value is None) and (not is_integer(value) or not 1 <= value <= most):
                expected = f"≥ 1{' or None' if optional else ''}{at_most(value, most)}"
                raise SettingError(f"expected {name} to be an integer {expected}, got {shortened(value)}.")
        if self.dim % self.heads or self.heads % (self.kv_heads or 1):
            raise SettingError(
                f"expected heads to divide dim, and kv_heads to divide heads, "
                f"got dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}."
            )
        as_rope(self.rope)  # or an error
        if self.init_std is not None and not (_is_finite(self.init_std) and self.init_std >= 0):
            raise SettingError(f"expected init_std to be a finite number ≥ 0, or None, got {shortened(self.init_std)}.")
        if not isinstance(self.bias, bool):
            raise SettingError(f"expected bias to be True or False, got {shortened(self.bias)}.")
        for name, depth in (("pattern", 2), ("rule", 1)):
            object.__setattr__(self, name, _frozen(getattr(self, name), name, depth))
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.layers:
                raise SettingError(
                    f"expected one {name} for all layers, or {self.layers}, one for each; got {len(given)}."
                )
        self._check_patterns()

    def _check_patterns(self) -> None:
        """Each rule fits its patterns: every pair that occurs is looked at once, however many layers there are."""
        pairs: dict[tuple[PatternLike, str | Rule], None] = {}
        for layer in range(self.layers):
            given = self._patterns_given(layer)
            if len(given) not in (1, self.heads):
                raise SettingError(
                    f"expected one pattern for all {self.heads} heads, or one for each; got {len(given):,}."
                )
            pairs |= {(pattern, self._rule_given(layer)): None for pattern in given}
            if len(pairs) > MOST_PATTERNS:
                raise SettingError(f"expected at most {MOST_PATTERNS:,} different patterns and rules, got more.")
        for pattern, rule in pairs:
            require_fit(as_rule(rule), as_pattern(pattern))
            require_rope_fit(as_rule(rule), self.rope, self.dim // self.heads)

    def patterns_of(self, layer: int) -> tuple[Pattern, ...]:
        """The pattern of each head of a layer, or the one that all its heads share."""
        return tuple(map(as_pattern, self._patterns_given(layer)))

    def rule_of(self, layer: int) -> Rule:
        return as_rule(self._rule_given(layer))

    # Sequences have become tuples in `__post_init__`; the types of the fields say what a caller may give.
    def _patterns_given(self, layer: int) -> tuple[PatternLike, ...]:
        given = self.pattern[layer] if isinstance(self.pattern, tuple) else self.pattern
        return given if isinstance(given, tuple) else (given,)

    def _rule_given(self, layer: int) -> str | Rule:
        return self.rule[layer] if isinstance(self.rule, tuple) else self.rule  # type: ignore[return-value]

    @property
    def pattern_label(self) -> str:
        """The pattern of all layers, or of each, for tables and titles."""
        return _label(self.pattern)

    @property
    def rule_label(self) -> str:
        return _label(self.rule)

    @property
    def inner_dim(self) -> int:
        return self.ff_dim or 4 * self.dim

    @property
    def embedding_rows(self) -> int:
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def std(self) -> float:
        return float(0.02 * (768 / self.dim) ** 0.5) if self.init_std is None else self.init_std

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"pattern": _spelled(self.pattern), "rule": _spelled(self.rule)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object], *, complete: bool = False) -> ModelConfig:
        """The config with these values. An unknown name raises an error; if `complete`, a missing one, too."""
        check_model_settings(values, complete=complete)
        make: Callable[..., ModelConfig] = cls  # which checks its values
        return make(**values)


def check_model_settings(values: Mapping[str, object], *, complete: bool = False) -> None:
    """Every name is a setting of a model; if `complete`, none is missing."""
    known = field_names(ModelConfig)
    check_names(values, known, "a model")
    missing = [name for name in known if name not in values]
    if complete and missing:
        raise SettingError(f"expected every setting of a model, and {', '.join(missing)} is missing.")


def _frozen(value: object, name: str, depth: int) -> object:
    """Sequences, of so many levels, as tuples; patterns and rules by their spelling where they have one."""
    if isinstance(value, list | tuple) and depth:
        return tuple(_frozen(item, name, depth - 1) for item in value)
    if callable(value):
        value = as_pattern(value)
    if isinstance(value, Pattern):
        return value.spelling if value.has_spelling else value
    if isinstance(value, Rule):
        return str(value)
    if not isinstance(value, str):
        raise SettingError(f"expected each {name} by its name, got {shortened(value)}.")
    return value


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _spelled(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_spelled, value))
    if isinstance(value, Pattern):
        raise SettingError(
            f"{value} is a Python function, which no file can hold: expected a pattern with a spelling, "
            "like 'stride:k**3+1'."
        )
    return value


def _label(value: object) -> str:
    if isinstance(value, tuple):
        return " | ".join(map(_label, value))
    long = isinstance(value, str) and "explicit:" in value  # a table, which has a shorter name
    return str(as_pattern(value)) if long else str(value)  # type: ignore[arg-type]


_GPT2 = ModelConfig(
    vocab_size=50_257, layers=12, dim=768, heads=12, pattern="attention", vocab_multiple=256, init_std=0.02
)

PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(),
    "synthetic-4m": ModelConfig(vocab_size=8192, layers=2, dim=256, heads=4),
    "gpt2-125m": _GPT2,
    "gpt2-355m": dataclasses.replace(_GPT2, layers=24, dim=1024, heads=16),
    "gpt2-775m": dataclasses.replace(_GPT2, layers=36, dim=1280, heads=20),
}


def preset(name: str, **changes: object) -> ModelConfig:
    """A model by name, with settings changed.

    Args:
        name: tiny, synthetic-4m, gpt2-125m, gpt2-355m or gpt2-775m.
        changes: settings of `ModelConfig`, by name.

    Returns:
        The config; `LanguageModel` makes the model.

    >>> preset("gpt2-125m", pattern="quadratic+cache").dim
    768
    """
    if name not in PRESETS:
        raise SettingError(f"unknown preset '{name}': expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    check_model_settings(changes)
    change: Callable[..., ModelConfig] = dataclasses.replace  # the config checks its values
    return change(PRESETS[name], **changes)
