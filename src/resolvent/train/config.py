"""What a run is, as a value: model, task and training. Everything that decides its numbers is in here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resolvent.model.config import ModelConfig
from resolvent.patterns.errors import closest
from resolvent.tasks import Task, task
from resolvent.train.text import Text, text

PRECISIONS = ("float32", "bfloat16")
PARALLEL = ("replicate", "shard")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. Decay spares gates, norms, biases and embeddings: all that is not a matrix of a layer.

    learning_rate  reached after `warmup` steps, then a cosine down to zero
    batch          sequences per step, over all processes
    curriculum     share of the steps in which sizes are divided by 8, 4 and 2, a third of it each; the paper's is 0.75
    accumulate     parts that each step's batch is computed in, one after another, to need less memory
    recompute      keep what enters each block, not what happens inside, and compute it again for the gradient
    spike          skip a step whose gradient is this many times as large as the average before; None to take it
    solved         stop when this accuracy on full sizes is reached at an evaluation; None to go on to the end
    patience       steps in a row that are not finite, or spikes, before the run is given up; each is skipped
    threads        of torch and the kernels: part of the config, since sums of different order differ in their last bits
    parallel       on several processes, weights and moments are whole on each ("replicate") or a part on each ("shard")
    """

    steps: int = 1000
    warmup: int = 100
    learning_rate: float = 2e-3
    batch: int = 64
    weight_decay: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.98
    clip: float = 1.0
    curriculum: float = 0.0
    accumulate: int = 1
    recompute: bool = False
    spike: float | None = None
    precision: str = "float32"
    seed: int = 0
    eval_every: int = 250
    eval_batches: int = 8
    checkpoint_every: int = 250
    log_every: int = 10
    solved: float | None = 0.999
    patience: int = 10
    threads: int = 1
    parallel: str = "replicate"

    def __post_init__(self) -> None:
        kinds = {"int": int, "float": int | float, "bool": bool, "str": str}
        for name, kind in ((f.name, str(f.type)) for f in dataclasses.fields(self)):
            value, needed = getattr(self, name), kind.removesuffix(" | None")
            fits = isinstance(value, kinds[needed]) and (needed == "bool" or not isinstance(value, bool))
            if not fits and not (value is None and kind != needed):
                raise ValueError(f"expected {name} to be {kind.replace(' | ', ' or ')}, got {value!r}.")
        least = {"steps": 1, "warmup": 0, "batch": 1, "eval_every": 1, "eval_batches": 1, "checkpoint_every": 1,
                 "log_every": 1, "patience": 1, "threads": 1, "accumulate": 1}  # fmt: skip
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"expected {name} ≥ {low}, got {getattr(self, name)}.")
        if not 0 <= self.curriculum < 1:
            raise ValueError(f"curriculum is a share of the steps: expected 0 ≤ curriculum < 1, got {self.curriculum}.")
        if self.spike is not None and not self.spike > 1:
            raise ValueError(f"expected spike > 1, or None, got {self.spike}.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"expected {name} > 0, got {getattr(self, name)}.")
        if self.precision not in PRECISIONS:
            raise ValueError(f"expected precision {' or '.join(PRECISIONS)}, got {self.precision!r}.")
        if self.parallel not in PARALLEL:
            near = closest(str(self.parallel), PARALLEL)
            raise ValueError(f"expected parallel {' or '.join(PARALLEL)}, got {self.parallel!r}.{near}")

    def divisor(self, step: int) -> int:
        """What sizes are divided by at a step, from 0."""
        small = self.curriculum * self.steps
        return (8, 4, 2)[int(3 * step / small)] if step < small else 1


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    model: ModelConfig
    task: Mapping[str, Any]
    train: TrainConfig

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", self.make_task().settings())  # all of them, also those left to their defaults
        needed = self.task["vocab_size"]
        if self.model.vocab_size < needed:
            raise ValueError(
                f"{self.task['name']} has {needed:,} tokens: expected a model with at least as many, "
                f"got {self.model.vocab_size:,}."
            )

    def make_task(self) -> Task | Text:
        settings = {key: value for key, value in self.task.items() if key != "name"}
        return text(settings) if self.task["name"] == "text" else task(self.task["name"], settings)

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), "task": dict(self.task), "train": dataclasses.asdict(self.train)}

    def differences(self, saved: Mapping[str, Any]) -> str:
        """Settings that are not those of a run whose config was saved: nothing if this is that run.

        It may go on with another `parallel`, which leaves its numbers as they are but for rounding, and with a text
        that has been moved; settings that did not exist when it was saved had their defaults.
        """
        own = json.loads(json.dumps(self.to_dict()))
        train = dataclasses.asdict(TrainConfig()) | saved["train"] | {"parallel": self.train.parallel}
        other = {**saved, "train": train, "task": {**saved["task"]}}
        if "sha256" in own["task"]:
            other["task"]["corpus"] = own["task"]["corpus"]
        return ", ".join(
            f"{part}.{key} is {other[part].get(key)!r} there, {own[part].get(key)!r} here"
            for part in own
            for key in [*own[part], *(k for k in other[part] if k not in own[part])]
            if own[part].get(key) != other[part].get(key)
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        return cls(ModelConfig.from_dict(values["model"]), values["task"], train_config(values["train"]))

    def changed(self, assignments: Sequence[str]) -> RunConfig:
        """With settings such as `train.steps=500` or `model.dim=64` changed."""
        values = self.to_dict()
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            part, dot, key = name.strip().partition(".")
            if not equals or not dot or part not in values:
                raise ValueError(f"expected a setting as model.…=…, task.…=… or train.…=…, got '{assignment}'.")
            known = values[part]
            if key not in known:
                raise ValueError(f"unknown setting '{part}.{key}': expected {', '.join(known)}.{closest(key, known)}")
            known[key] = _read(text.strip(), known[key], name)
        return RunConfig.from_dict(values)


def train_config(values: Mapping[str, Any]) -> TrainConfig:
    """From plain values; an unknown name is refused, with the nearest one."""
    known = [field.name for field in dataclasses.fields(TrainConfig)]
    for name in values:
        if name not in known:
            raise ValueError(
                f"unknown setting '{name}' of training: expected {', '.join(known)}.{closest(name, known)}"
            )
    return TrainConfig(**values)


def _read(text: str, like: object, name: str) -> object:
    """A value of the same kind as the one it replaces; anything that is no JSON is a word."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    numbers = isinstance(like, int | float) and not isinstance(like, bool)
    if like is not None and value is not None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) if numbers else True
        if isinstance(like, int) and not isinstance(like, bool):
            fits = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(like, bool):
            fits = isinstance(value, bool)
        if not fits:
            raise ValueError(f"expected {name} to be like {like!r}, got '{text}'.")
    return value
