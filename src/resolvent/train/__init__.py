"""Training: one loop for all tasks, typed records, checkpoints that a run resumes from exactly.

Only what needs torch loads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.control import Control, Progress, StoppedError
from resolvent.train.record import Record

if TYPE_CHECKING:
    from resolvent.train.loop import DivergedError, train

__all__ = ["Control", "DivergedError", "Progress", "Record", "RunConfig", "StoppedError", "TrainConfig", "train"]

_NEEDS_TORCH = ("DivergedError", "train")


def __getattr__(name: str) -> object:
    if name in _NEEDS_TORCH:
        return getattr(import_module("resolvent.train.loop"), name)
    raise AttributeError(f"module 'resolvent.train' has no attribute {name!r}")
