"""Steps of training per second: the kernels against the paper's way, on the same model, taking turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import final

import torch
from torch import Tensor

from resolvent.model import LanguageModel
from resolvent.ops.backend import Backend, Request, Token
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import Rows
from resolvent.studies.table1 import PRESETS, run_config
from resolvent.tasks import Copy
from resolvent.train.loop import make_optimizer, take_step
from resolvent.train.processes import SINGLE


@dataclass(frozen=True)
class Throughput:
    """Medians over rounds, in seconds for a step; `task_share` is what making the batch takes of ours.

    free   the same step with mixing left out: what no kernel could be faster than
    """

    structure: str
    n: int
    ours: float
    paper: float
    free: float
    task_share: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@final
class NoMixing:
    """A backend that adds up all it needs for mixing and mixes nothing."""

    NAME = "none"
    REFUSAL = "backend 'none' mixes nothing: it has no solve and no cache."

    def refusal(self, request: Request) -> str | None:
        return None if request.operation == "mix" else self.REFUSAL

    def preference(self, request: Request) -> str | None:  # noqa: ARG002
        return None

    def mix(self, inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:  # noqa: ARG002
        same = (t for t in inputs[1:] if t.shape == inputs.x.shape)
        return sum(same, start=inputs.x)

    def solve(self, x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
        raise NotImplementedError(self.REFUSAL)  # the registry asks `refusal` first

    def step(self, token: Token, scale: float) -> Tensor:
        raise NotImplementedError(self.REFUSAL)


WAYS: dict[str, str | Backend] = {"ours": "auto", "paper": "paper", "free": NoMixing()}


def throughput(
    structures: Sequence[str], batch: int, rounds: int, threads: int, after_each: Callable[[], None] = lambda: None
) -> list[Throughput]:
    """The paper's model on copies of 128 symbols, n = 257, in batches that a CPU can hold."""
    torch.set_num_threads(threads)
    results = []
    for structure in structures:
        results.append(_measure(structure, batch, rounds, threads))
        after_each()
    return results


def _measure(structure: str, batch: int, rounds: int, threads: int) -> Throughput:
    config = run_config(PRESETS["paper"], "copy", structure, 0)
    settings = dataclasses.replace(config.train, batch=batch, curriculum=0.0, threads=threads)
    task = Copy(length=128, least=128)
    models = {way: LanguageModel.seeded(config.model, 0, backend=backend) for way, backend in WAYS.items()}
    optimizers = {way: make_optimizer(model, settings) for way, model in models.items()}
    seconds: dict[str, list[float]] = {way: [] for way in [*WAYS, "task"]}
    for step in range(rounds + 1):
        for way, model in models.items():
            begin = time.perf_counter()
            take_step(SINGLE.distribute(model), optimizers[way], task, settings, step)
            seconds[way].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        task.batch(0, step, batch)
        seconds["task"].append(time.perf_counter() - begin)
    medians = {way: median(times[1:]) for way, times in seconds.items()}  # the first warms up
    share = medians.pop("task") / medians["ours"]
    return Throughput(config.model.pattern_label, task.longest, **medians, task_share=share)
