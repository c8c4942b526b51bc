"""What a caller of `train` decides beside the settings, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from resolvent.errors import RunError
from resolvent.tasks import Measure
from resolvent.train.state import TrainState


@dataclass(frozen=True)
class Progress:
    """How far a run is: handed to `on_progress` after every step."""

    step: int
    steps: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens_per_second: float
    measure: Measure
    value: float | None  # accuracy or perplexity at the last evaluation


OnProgress = Callable[[Progress], None]


class StoppedError(RunError):
    """A run that was asked to stop. Its checkpoint is that of the step after which it did."""

    def __init__(self, step: int, steps: int) -> None:
        super().__init__(f"stopped after step {step:,} of {steps:,}")
        self.step = step


@dataclass(frozen=True)
class Control:
    """What a caller decides about a run beside its settings, none of which changes a number.

    stop          asked after every step whether to stop there, with a checkpoint; of several processes, any may say so
    extend        go on from a run of fewer steps than the settings say; otherwise that is an error
    keep          keep the last checkpoint of a finished run, without which it cannot be extended
    save_seconds  also write a checkpoint when the last one is as old as that, however many steps it is
    on_start      called before the first step with the state that the run starts or resumes from
    on_trained    called after the last step and its checkpoint, before the final evaluation
    on_evaluation called after each batch of the final evaluation: how many are done, of how many
    """

    stop: Callable[[], bool] | None = None
    extend: bool = False
    keep: bool = False
    save_seconds: float = math.inf
    on_start: Callable[[TrainState], None] = lambda _: None
    on_trained: Callable[[], None] = lambda: None
    on_evaluation: Callable[[int, int], None] = lambda *_: None
