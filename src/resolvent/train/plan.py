"""What a run will take, before it begins: parameters, tokens, operations and memory; and what to do about too much."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from resolvent.model import LanguageModel, ModelConfig
from resolvent.model.language_model import MOST_LOGITS
from resolvent.model.profile import StackProfile
from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.processes import shards_of

_UNITS = ((365.25 * 86_400.0, "years"), (86_400.0, "days"), (3600.0, "h"), (60.0, "min"))
LARGEST_GPU = ("A100 80 GB", 80e9)  # with the most memory of those that are common, and its bytes
_STATE_BYTES = 16  # for each parameter, in float32: weight, gradient, two moments of AdamW
_RESIDUALS = 2  # inputs of a block's two branches, in float32 whatever the precision
_COPIES = 4  # outputs of the two norms, and what rotations and projections keep beside: fits what was measured on CPUs
_LOGITS = 3  # logits, their softmax and its gradient exist at once


@dataclass(frozen=True)
class TrainingCost:
    """A model of what steps take: arithmetic, not a measurement.

    flops_per_token   two for each multiply-add, forward and twice that backward; once more forward with `recompute`
    state_bytes       weights, gradients and the moments of AdamW
    activation_bytes  what the forward pass keeps for the backward pass, at its peak
    """

    parameters: int
    flops_per_token: float
    state_bytes: int
    activation_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes


def training_cost(
    config: ModelConfig, profile: StackProfile, sequences: int, *, precision: str = "float32", recompute: bool = False
) -> TrainingCost:
    """See `TrainingCost`, with `sequences` sequences at once; the profile is that of the model on their tokens."""
    item, tokens = 4 if precision == "float32" else 2, profile.n * sequences
    blocks = [
        4 * _RESIDUALS * config.dim
        + item * (_COPIES * config.dim + 2 * config.inner_dim + layer.training_bytes_per_token / 4)
        for layer in profile.layers
    ]
    logits = 4 * _LOGITS * min(tokens * config.vocab_size, MOST_LOGITS)
    if recompute:  # the inputs of blocks, and one block at a time, when the logits are gone
        activations = tokens * 4 * config.dim * config.layers + max(tokens * max(blocks), logits)
    else:
        activations = tokens * sum(blocks) + logits
    return TrainingCost(
        parameters=profile.parameters,
        flops_per_token=(8 if recompute else 6) * profile.madds_per_token,
        state_bytes=_STATE_BYTES * profile.parameters,
        activation_bytes=round(activations),
    )


@dataclass(frozen=True)
class RunPlan:
    """A run as it will be: its profile is that of the model on the task's longest sequences; memory, of one process."""

    config: RunConfig
    profile: StackProfile
    processes: int = 1

    @classmethod
    def of(cls, config: RunConfig, processes: int = 1) -> RunPlan:
        return cls(config, LanguageModel.shape_only(config.model).profile(config.task.longest), processes)

    @cached_property
    def cost(self) -> TrainingCost:
        settings = self.config.train
        sequences = -(-settings.batch // self.processes // settings.accumulate)
        cost = training_cost(
            self.config.model, self.profile, sequences, precision=settings.precision, recompute=settings.recompute
        )
        shards = shards_of(settings.parallel, settings.shard_group, self.processes)
        return dataclasses.replace(cost, state_bytes=cost.state_bytes // shards)

    @cached_property
    def tokens(self) -> int:
        return round(tokens_between(self.config, 0, self.config.train.steps))

    @property
    def epochs(self) -> float | None:
        return self.config.task.epochs(self.tokens)

    @property
    def flops(self) -> float:
        return self.cost.flops_per_token * self.tokens

    def __str__(self) -> str:
        settings, length = self.config.train, self.config.task.longest
        epochs = "" if self.epochs is None else f", {self.epochs:,.2f} epochs"
        return (
            f"{self.cost.parameters:,} parameters; {settings.steps:,} steps of {settings.batch} × {length:,} = "
            f"{settings.batch * length:,} tokens{epochs}\n"
            f"estimated: {self.flops:.2g} FLOPs, {in_bytes(self.cost.peak_bytes)} of memory at the peak"
        )

    def that_fits(self, available: float) -> str:
        """Settings with which the same run, but for rounding, fits into memory; empty if none of those tried do."""
        largest = -(-self.config.train.batch // self.processes)
        for recompute in (self.config.train.recompute, True):
            accumulate = self.config.train.accumulate
            while accumulate <= 2 * largest:
                change: dict[str, object] = {"accumulate": min(accumulate, largest), "recompute": recompute}
                if self._with(change).cost.peak_bytes <= available:
                    return " ".join(
                        f"--set train.{name}={str(value).lower()}"
                        for name, value in change.items()
                        if value != getattr(self.config.train, name)
                    )
                accumulate *= 2
        return ""

    def _with(self, change: dict[str, object]) -> RunPlan:
        replace: Callable[..., TrainConfig] = dataclasses.replace
        config = dataclasses.replace(self.config, train=replace(self.config.train, **change))
        return dataclasses.replace(self, config=config)


def tokens_between(config: RunConfig, first: int, last: int) -> float:
    """Tokens of the steps from `first` to before `last`; a curriculum begins with shorter sequences."""
    settings = config.train
    shares = sum(1 / settings.divisor(step) for step in range(first, last)) if settings.curriculum else last - first
    return settings.batch * config.task.longest * shares


def available_bytes(device: torch.device) -> float:
    """Memory that a run can have on a device: what is free now, within the limit of a container."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    limits = [_meminfo(), _number(Path("/sys/fs/cgroup/memory.max"))]
    return min(limit for limit in limits if limit is not None) if any(limits) else math.inf


def _meminfo() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # "max"
        return None


def in_time(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in _UNITS:
        if seconds >= 2 * size or (seconds >= size and unit in ("h", "min")):
            return f"{seconds / size:,.1f} {unit}" if seconds < 10 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def in_bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
