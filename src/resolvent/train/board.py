"""Metrics for TensorBoard, for those who have it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from resolvent.train.loop import Progress

_EVERY = 10  # steps


class Board:
    """Writes what a run reports into a folder that TensorBoard reads."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard is missing: pip install 'resolvent[board]', or do without.") from error
        self._open: Any = partial(SummaryWriter, str(folder))
        self.writer: Any = None
        self.found: dict[str, float] = {}

    def write(self, p: Progress) -> None:
        """Every tenth step, the last, and what evaluations find. What a run does again takes the place of the first."""
        self.writer = self.writer or self._open(purge_step=p.step)
        values = {"loss": p.loss, "gradient_norm": p.gradient_norm, "learning_rate": p.learning_rate}
        values = {} if p.step % _EVERY and p.step != p.steps else values
        if p.found != self.found:
            values, self.found = values | p.found, dict(p.found)
        for name, value in values.items():
            self.writer.add_scalar(name, value, p.step)
        if values:
            self.writer.flush()
