"""Settings, texts and records of runs that take seconds, or none."""

from typing import Any

from resolvent.train import Record
from resolvent.train.record import Environment

QUICK = ["train.steps=12", "train.warmup=2", "train.batch=4", "train.eval_every=6", "train.eval_batches=1",
         "train.checkpoint_every=3", "train.log_every=1", "model.dim=16"]  # fmt: skip
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs")


def record_of(**values: Any) -> Record:
    """A record whose config and evaluation matter, and little else."""
    environment = Environment("3", {"torch": "2"}, "m", "c")
    usual = {"environment": environment, "parameters": 1000, "seconds": 36.0, "steps": 10, "tokens": 1000,
             "skipped_steps": 0, "solved_at": None, "curve": ()}  # fmt: skip
    return Record(**usual | values)
