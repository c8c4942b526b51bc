"""Language models on text: the paper's sizes, and smaller ones for two cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from resolvent.errors import SettingError, closest
from resolvent.model.config import PRESETS as MODELS
from resolvent.model.config import ModelConfig, PatternSetting
from resolvent.tasks import Text
from resolvent.train.config import RunConfig, TrainConfig


@dataclass(frozen=True)
class TextPreset:
    """A model without its pattern, rule and vocabulary, and how it is trained, on batch × context tokens a step.

    gate  where the gates of the plain rule start, if not where they usually do
    """

    about: str
    model: ModelConfig
    train: TrainConfig
    context: int
    seeds: int = 1
    first_seed: int = 0
    gate: str = ""


_PAPER = TrainConfig(weight_decay=0.1, beta_1=0.9, beta_2=0.95, clip=1.0, precision="float16", eval_every=500,
                     eval_batches=20, checkpoint_every=500, solved=None, spike=None)  # fmt: skip


def _paper(size: str, context: int, **training: float) -> dict[str, TextPreset]:
    """A model of the paper's table, trained as there to the letter; and as is recommended, under a name of its own."""
    change: Callable[..., TrainConfig] = dataclasses.replace
    model, train = MODELS[f"gpt2-{size}"], change(_PAPER, **training)
    ours = dataclasses.replace(train, precision="bfloat16", spike=10.0)
    return {
        f"gpt2-{size}": TextPreset(f"exactly the paper's {size}, for GPUs", model, train, context, gate="mamba"),
        f"recommended-{size}": TextPreset(
            f"{size} with bfloat16, gates initialized to 0.5 and loss spikes skipped, for GPUs", model, ours, context
        ),
    }


_TRAIN = TrainConfig(steps=1500, warmup=150, learning_rate=3e-3, batch=8, beta_2=0.95, eval_every=250, eval_batches=16,
                     checkpoint_every=250, solved=None, spike=10.0)  # fmt: skip

PRESETS: dict[str, TextPreset] = {
    "quick": TextPreset("minutes on two cores", ModelConfig(layers=2, dim=96, heads=3), _TRAIN, 256),
    "small": TextPreset(
        "contexts of 128, three seeds; under a minute of one core for most runs",
        ModelConfig(layers=2, dim=64, heads=2),
        dataclasses.replace(_TRAIN, steps=600, warmup=60, eval_every=200, checkpoint_every=200),
        128,
        seeds=3,
    ),
    "laptop": TextPreset(
        "ten to thirty minutes of one core for each run",
        ModelConfig(layers=4, dim=128, heads=4),
        dataclasses.replace(_TRAIN, steps=3000, warmup=300, batch=4),
        512,
    ),
    "python": TextPreset(
        "contexts of 1,024 and 50 million tokens; 20 to 30 minutes of two cores for each run",
        ModelConfig(layers=2, dim=64, heads=2),
        dataclasses.replace(
            _TRAIN, steps=6144, warmup=307, batch=8, eval_every=256, eval_batches=4, checkpoint_every=128
        ),
        1024,
        first_seed=10,  # learning rates were chosen on others
    ),
    **_paper("125m", 1024, steps=20_000, warmup=1000, learning_rate=5e-4, batch=128),
    **_paper("355m", 2048, steps=25_000, warmup=2500, learning_rate=2.5e-4, batch=128),
    **_paper("775m", 2048, steps=25_000, warmup=2500, learning_rate=2e-4, batch=256),
}


def preset_of(name: str) -> TextPreset:
    """The preset of this name."""
    if name not in PRESETS:
        raise SettingError(f"unknown preset '{name}' of text: expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    return PRESETS[name]


def run_config(
    size: TextPreset, text: Text, pattern: PatternSetting, seed: int, rule: str = "softmax", rate: float = 1.0
) -> RunConfig:
    """The settings of one run on a prepared text, whose vocabulary is that of the model; `rate`, of the preset's."""
    model = dataclasses.replace(size.model, vocab_size=text.vocab_size, pattern=pattern, rule=rule)
    gated = any(p.recurrent for layer in range(model.layers) for p in model.patterns_of(layer))
    if size.gate and rule == "softmax" and gated:
        model = dataclasses.replace(model, rule=f"softmax:gate={size.gate}")
    learning_rate = float(f"{rate * size.train.learning_rate:.3g}")
    return RunConfig(model, text, dataclasses.replace(size.train, seed=seed, learning_rate=learning_rate))


def with_parameters_of(config: RunConfig, reference: RunConfig) -> RunConfig:
    """With MLPs of the width that gives the model as many parameters as the reference has, or nearly so."""
    model = config.model
    per_unit = model.layers * (2 * model.dim + model.bias)  # a row, a column, a bias in each block
    missing = _parameters(reference.model) - _parameters(model)
    wide = max(model.inner_dim + round(missing / per_unit), 1)
    return dataclasses.replace(config, model=dataclasses.replace(model, ff_dim=wide))


def _parameters(model: ModelConfig) -> int:
    from resolvent.model.language_model import LanguageModel  # torch, where models are counted alone

    return LanguageModel.shape_only(model).parameter_count()
