"""Language models on real text: the paper's sizes, a ladder that two cores can climb, and the studies on them.

A study is structures × rules × seeds on a corpus. Studies with the same `out` share their runs: what one has trained,
the next one reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resolvent.model.config import PRESETS as MODELS
from resolvent.model.config import TRAINING, ModelConfig
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.patterns.errors import closest
from resolvent.studies.grid import Cell, slug
from resolvent.train import RunConfig, TrainConfig
from resolvent.train.text import Text


@dataclass(frozen=True)
class Preset:
    """A model without its pattern and vocabulary, and how it is trained. Steps take batch × context tokens."""

    about: str
    model: ModelConfig
    train: TrainConfig
    context: int
    seeds: int = 1
    first_seed: int = 0


def _paper(name: str) -> Preset:
    """As in the paper's table of models."""
    t = TRAINING[name]
    train = TrainConfig(
        steps=t.steps, warmup=t.warmup, learning_rate=t.learning_rate, batch=t.batch, weight_decay=t.weight_decay,
        beta_1=t.beta_1, beta_2=t.beta_2, clip=t.clip, precision="bfloat16", eval_every=500, eval_batches=20,
        checkpoint_every=500, solved=None, spike=10.0,
    )  # fmt: skip
    return Preset(f"the paper's {name}, for GPUs", MODELS[name], train, t.context)


_TRAIN = TrainConfig(steps=1500, warmup=150, learning_rate=3e-3, batch=8, beta_2=0.95, eval_every=250, eval_batches=16,
                     checkpoint_every=250, solved=None, spike=10.0)  # fmt: skip

PRESETS: dict[str, Preset] = {
    "quick": Preset("minutes on two cores", ModelConfig(layers=2, dim=96, heads=3), _TRAIN, 256),
    "laptop": Preset(
        "ten to thirty minutes of one core for each run",
        ModelConfig(layers=4, dim=128, heads=4),
        dataclasses.replace(_TRAIN, steps=3000, warmup=300, batch=4),
        512,
    ),
    **{name: _paper(name) for name in ("gpt2-125m", "gpt2-355m", "gpt2-775m")},
}


@dataclass(frozen=True)
class Study:
    """What is compared: every structure with every rule."""

    structures: tuple[str, ...]
    rules: tuple[str, ...] = ("softmax",)


_FEW = ("exponential+cache", "quadratic+cache", "dense")

STUDIES: dict[str, Study] = {
    "pareto": Study(tuple(PAPER_STRUCTURES)),
    "mamba": Study(("first-order",), ("softmax", "mamba")),
    "sharing": Study(_FEW, ("softmax", "tied")),
    "normalisation": Study(_FEW, ("softmax", "softmax:gate=0.5", "whole")),
    "length": Study(tuple(PAPER_STRUCTURES)),
}
_OWN = {  # settings that tell the cells of a study apart
    "model.pattern": "--structures",
    "model.coefficients": "--rules",
    "train.seed": "--seeds",
    "task.corpus": "--corpus",
}


def preset_of(name: str) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"unknown preset '{name}' of text: expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    return PRESETS[name]


def run_config(size: Preset, corpus: str, structure: str, seed: int, rule: str = "softmax") -> RunConfig:
    """The settings of one run; the vocabulary is that of the corpus."""
    text = Text(corpus, size.context)
    model = dataclasses.replace(size.model, vocab_size=text.vocab_size, pattern=structure, coefficients=rule)
    return RunConfig(model, text.settings(), dataclasses.replace(size.train, seed=seed))


def cells(
    study: str, preset: str, corpus: str, out: Path, *, structures: Sequence[str] | None = None,
    rules: Sequence[str] | None = None, seeds: int | None = None, changes: Sequence[str] = (),
) -> list[Cell]:  # fmt: skip
    """Every run of a study, seed by seed, so that a study that is stopped has whole comparisons."""
    size, compared = preset_of(preset), STUDIES[study]
    for change in changes:
        if (key := change.partition("=")[0].strip()) in _OWN:
            raise ValueError(f"the study sets {key} itself: expected {_OWN[key]} instead of --set {change}.")
    if seeds is not None and seeds < 1:
        raise ValueError(f"expected at least one seed, got {seeds}.")
    return [
        Cell("text", structure if rule == "softmax" else f"{structure} · {rule}", seed,
             run_config(size, corpus, structure, seed, rule).changed(changes),
             out / "runs" / structure.replace("/", "_") / slug(rule) / f"seed{seed}")
        for seed in range(size.first_seed, size.first_seed + (seeds or size.seeds))
        for structure in dict.fromkeys(structures or compared.structures)
        for rule in dict.fromkeys(rules or compared.rules)
    ]  # fmt: skip
