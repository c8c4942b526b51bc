"""Training: one loop for all tasks, records, checkpoints that a run goes on from exactly."""

from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.loop import DivergedError, Progress, train

__all__ = ["DivergedError", "Progress", "RunConfig", "TrainConfig", "train"]
