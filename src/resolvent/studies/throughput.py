"""Steps of training per second: the kernels against the paper's way, in the same model, taking turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from resolvent.model import LanguageModel
from resolvent.patterns import Pattern, pattern
from resolvent.studies.table1 import PRESETS, run_config
from resolvent.tasks import Copy
from resolvent.train.loop import make_optimizer, take_step
from resolvent.train.processes import Processes


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def throughput(
    structures: Sequence[str], batch: int, rounds: int, threads: int, after_each: Callable[[], None] = lambda: None
) -> list[Throughput]:
    """The paper's model on copies of 128 symbols, n = 257, in batches that a CPU can hold."""
    torch.set_num_threads(threads)
    found = []
    for structure in structures:
        config = run_config(PRESETS["paper"], "copy", structure, 0)
        how = dataclasses.replace(config.train, batch=batch, curriculum=0.0, threads=threads)
        task = Copy(length=128, least=128)
        model = LanguageModel.seeded(config.model, 0)
        optimizer = make_optimizer(model, how)
        alone = Processes(0, 1, torch.device("cpu"))
        taken: dict[str, list[float]] = {"ours": [], "paper": [], "free": [], "task": []}
        ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "ours": nullcontext,
            "paper": as_in_the_paper,
            "free": _without_mixing,
        }
        for step in range(rounds + 1):
            for way, context in ways.items():
                with context():
                    begin = time.perf_counter()
                    take_step(model, optimizer, task, how, step, alone)
                    taken[way].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            task.batch(0, step, batch)
            taken["task"].append(time.perf_counter() - begin)
        medians = {name: median(seconds[1:]) for name, seconds in taken.items()}  # the first warms up
        share = medians.pop("task") / medians["ours"]
        found.append(Throughput(structure, task.longest, **medians, task_share=share))
        after_each()
    return found


@contextmanager
def as_in_the_paper() -> Iterator[None]:
    """Within, layers run on dense masked matrices and a triangular solve, always quadratic, as the paper ran them."""
    with patch("resolvent.coefficients.softmax.mix", masked_solve):
        yield


@contextmanager
def _without_mixing() -> Iterator[None]:
    """Within, layers make all they need for mixing, add it up and mix nothing."""

    def free(x: Tensor, *others: Tensor | None, **_: object) -> Tensor:
        same = (other for other in others if isinstance(other, Tensor) and other.shape == x.shape)
        return sum(same, start=x)

    with patch("resolvent.coefficients.softmax.mix", free):
        yield


def masked_solve(
    x: Tensor, qa: Tensor | None, ka: Tensor | None, qb: Tensor | None, kb: Tensor | None, gate: Tensor | None,
    p: Pattern | str, **_: object,
) -> Tensor:  # fmt: skip
    """`mix` with n × n matrices; plain sequences only."""
    chosen = pattern(p)
    direct, feedback, fed = _masks(chosen, x.shape[-2])
    g = 0 if gate is None else (gate * fed)[..., None]
    if qa is not None and ka is not None:
        x = (qa @ ka.mT * qa.shape[-1] ** -0.5).masked_fill(~direct, -torch.inf).softmax(-1) @ x
    if gate is None:
        return x
    scores = feedback.to(x.dtype) if qb is None or kb is None else qb @ kb.mT * qb.shape[-1] ** -0.5
    weights = scores.masked_fill(~(feedback | ~fed[:, None]), -torch.inf).softmax(-1) * feedback
    left = torch.eye(x.shape[-2], dtype=x.dtype) - g * weights
    y: Tensor = torch.linalg.solve_triangular(left, (1 - g) * x, upper=False, unitriangular=True)
    return y


@lru_cache(maxsize=32)
def _masks(p: Pattern, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """What A reads, what B reads, and which rows of B read anything."""
    direct, feedback = (torch.from_numpy(p.mask(n, part)) for part in ("a", "b"))
    return direct, feedback, feedback.any(1)
