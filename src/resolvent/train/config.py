"""What a run is, as a value: model, task and training. Everything that decides its numbers is in here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resolvent import untrusted
from resolvent.errors import SettingError, closest
from resolvent.fields import Amount, Count, Positive, Share, as_mapping, as_text, check_names, check_types, field_names
from resolvent.model.config import ModelConfig
from resolvent.patterns.checks import require_length
from resolvent.tasks import Task, task

PRECISIONS = ("float32", "bfloat16", "float16")
PARALLEL = ("replicate", "shard", "hybrid")
_MOST_THREADS = 4096
SECTIONS = ("model", "task", "train")
SPELLED = "model.rope"  # a number, or a spelling
LENGTHS = ("task.length", "task.least", "task.context")  # in tokens: 2k is 2,048 there, as everywhere


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. Only the matrices of layers decay: not gates, norms, biases and embeddings.

    learning_rate  reached after `warmup` steps, then a cosine down to zero
    batch          sequences per step, over all processes
    curriculum     share of the steps in which sizes are divided by 8, 4 and 2, a third of it each; the paper's is 0.75
    accumulate     micro-batches that each step's batch is computed in, one after another, to need less memory
    recompute      keep the input of each block, and recompute its activations in the backward pass
    spike          skip a step whose gradient norm exceeds the running average by this factor; None to take it
    precision      of matrix products; with "float16" the loss is scaled, so that small gradients do not vanish, and
                   steps whose gradients overflow are skipped while the scale adapts
    solved         stop when this accuracy on full sizes is reached at an evaluation; None to train to the end
    patience       consecutive skipped steps (not finite, or spikes) before the run is given up
    threads        of torch and the kernels: part of the config, since sums of different order differ in their last bits
    parallel       on several processes, weights and moments are copied to each ("replicate"), sharded ("shard"), or
                   sharded within groups and copied between them ("hybrid")
    shard_group    processes in such a group; None for those of a machine
    start          run, model or checkpoint whose weights training starts from [default: initial weights of the seed]
    start_sha256   digest of those weights, filled in by `RunConfig.prepared`
    """

    steps: Positive = 1000
    warmup: Count = 100
    learning_rate: Amount = 2e-3
    batch: Positive = 64
    weight_decay: Amount = 0.1
    beta_1: Share = 0.9
    beta_2: Share = 0.98
    clip: float = 1.0
    curriculum: Amount = 0.0
    accumulate: Positive = 1
    recompute: bool = False
    spike: Amount | None = None
    precision: str = "float32"
    seed: int = 0
    eval_every: Positive = 250
    eval_batches: Positive = 8
    checkpoint_every: Positive = 250
    log_every: Positive = 10
    solved: float | None = 0.999
    patience: Positive = 10
    threads: Positive = 1
    parallel: str = "replicate"
    shard_group: Positive | None = None
    start: str = ""
    start_sha256: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if self.threads > _MOST_THREADS:
            raise SettingError(f"expected threads ≤ {_MOST_THREADS:,}, got {self.threads:,}.")
        if not 0 <= self.curriculum < 1:
            raise SettingError(
                f"curriculum is a share of the steps: expected 0 ≤ curriculum < 1, got {self.curriculum}."
            )
        if self.spike is not None and not self.spike > 1:
            raise SettingError(f"expected spike > 1, or None, got {self.spike}.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(f"expected {name} > 0, got {getattr(self, name)}.")
        for name, choices in (("precision", PRECISIONS), ("parallel", PARALLEL)):
            if (value := getattr(self, name)) not in choices:
                raise SettingError(f"expected {name} {' or '.join(choices)}, got {value!r}.{closest(value, choices)}")

    @property
    def sharded(self) -> bool:
        """Whether checkpoints are in shards."""
        return self.parallel != "replicate"

    def divisor(self, step: int) -> int:
        """What sizes are divided by at a step, from 0."""
        small = self.curriculum * self.steps
        return (8, 4, 2)[int(3 * step / small)] if step < small else 1

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> TrainConfig:
        """From plain values; settings left out have their defaults."""
        check_names(values, field_names(cls), "training")
        make: Callable[..., TrainConfig] = cls  # which checks its values
        return make(**values)


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run. Making one touches no file; `prepared` opens what the task reads."""

    model: ModelConfig
    task: Task
    train: TrainConfig

    def __post_init__(self) -> None:
        needed = self.task.vocab_size
        if self.model.vocab_size < needed:
            raise SettingError(
                f"{self.task.name} has {needed:,} tokens: expected a model with at least as many, "
                f"got {self.model.vocab_size:,}."
            )

    @property
    def title(self) -> str:
        """What is trained on what."""
        return f"{self.model.pattern_label} on {self.task.name}"

    def prepared(self) -> RunConfig:
        """With the task prepared: its settings complete, its files open; and with the digest of the initial weights."""
        config = dataclasses.replace(self, task=self.task.prepared())
        if not self.train.start or self.train.start_sha256:
            return config
        from resolvent.train.model_source import open_model  # torch, where weights are read alone

        digest = open_model(self.train.start).sha256
        return dataclasses.replace(config, train=dataclasses.replace(self.train, start_sha256=digest))

    def with_steps(self, steps: int) -> RunConfig:
        return dataclasses.replace(self, train=dataclasses.replace(self.train, steps=steps))

    def to_dict(self) -> dict[str, dict[str, object]]:
        train = dataclasses.asdict(self.train)
        if not self.train.start:  # as in files of runs from before there was a choice
            del train["start"], train["start_sha256"]
        return {"model": self.model.to_dict(), "task": self.task.settings(), "train": train}

    def flat(self) -> dict[str, object]:
        """All settings by their names in full, such as `train.steps`, as JSON has them."""
        return {
            f"{section}.{key}": value for section, settings in _plain(self).items() for key, value in settings.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> RunConfig:
        check_names(values, SECTIONS, "a run", optional=())
        model, settings, train = (as_mapping(values[section], section) for section in SECTIONS)
        name = as_text(settings.pop("name", None), "the name of the task")
        return cls(ModelConfig.from_dict(model), task(name, settings), TrainConfig.from_dict(train))

    def differences(self, saved: RunConfig) -> str:
        """Settings that differ from those of a saved run: empty if this is that run.

        It may continue with another `parallel` or `shard_group`, which leave its numbers as they are but for rounding,
        and with a corpus or initial weights that have been moved.
        """
        own, other = _plain(self), _plain(saved)
        other["train"] |= {name: own["train"][name] for name in ("parallel", "shard_group")}
        for train in (own["train"], other["train"]):
            train.pop("start", None)  # the digest says which weights
        if "sha256" in own["task"] and "corpus" in other["task"]:
            other["task"]["corpus"] = own["task"]["corpus"]
        return ", ".join(
            f"{section}.{key} was {other[section].get(key)!r}, is now {own[section].get(key)!r}"
            for section in own
            for key in dict.fromkeys([*own[section], *other[section]])
            if own[section].get(key) != other[section].get(key)
        )

    def changed(self, assignments: Sequence[str]) -> RunConfig:
        """With settings such as `train.steps=500` or `model.dim=64` changed."""
        values = self.to_dict()
        changes: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            section, dot, key = name.strip().partition(".")
            if not equals or not dot or section not in values:
                raise SettingError(f"expected a setting as model.…=…, task.…=… or train.…=…, got '{assignment}'.")
            known = [known for known in values[section] if (section, known) != ("task", "name")]
            if key not in known:
                raise SettingError(
                    f"unknown setting '{section}.{key}': expected {', '.join(known)}.{closest(key, known)}"
                )
            changes[section][key] = _parse(text.strip(), values[section][key], name)
        return self.updated(changes)

    def updated(self, changes: Mapping[str, Mapping[str, object]]) -> RunConfig:
        """With the settings of some sections changed; a task keeps its name."""
        check_names(changes, SECTIONS, "a run", optional=SECTIONS)
        given = {section: dict(changes.get(section, {})) for section in SECTIONS}
        kind = given["task"].pop("name", self.task.name)
        if kind != self.task.name:
            raise SettingError(f"expected settings of the task {self.task.name}, got those of {kind}.")
        check_names(given["task"], field_names(type(self.task)), f"the task {kind}")
        return RunConfig(
            ModelConfig.from_dict(self.model.to_dict() | given["model"]),
            self.task.changed(given["task"]),
            TrainConfig.from_dict(dataclasses.asdict(self.train) | given["train"]),
        )


def _plain(config: RunConfig) -> dict[str, dict[str, object]]:
    """As JSON would have it, where tuples are lists."""
    plain: dict[str, dict[str, object]] = json.loads(json.dumps(config.to_dict()))
    return plain


def _parse(text: str, previous: object, name: str) -> object:
    """A value of the same type as the one it replaces; anything that is not JSON is a word."""
    try:
        value = untrusted.parse(text)
    except ValueError:
        value = text
    if name.strip() in LENGTHS and isinstance(value, str):
        return require_length(value)
    if name.strip() == SPELLED and isinstance(value, str):
        return value
    if previous is None or value is None or not isinstance(previous, bool | int | float):
        return value
    kinds = (bool,) if isinstance(previous, bool) else (int,) if isinstance(previous, int) else (int, float)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        kind = {bool: "true or false", int: "an integer", float: "a number"}[type(previous)]
        raise SettingError(f"expected {name} to be {kind}, such as {json.dumps(previous)}, got '{text}'.")
    return value
