"""Metrics for TensorBoard, for those who have it."""

from __future__ import annotations

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
        self.writer: Any = SummaryWriter(str(folder))

    def write(self, p: Progress) -> None:
        """Every tenth step, and the last."""
        if p.step % _EVERY and p.step != p.steps:
            return
        values = {"loss": p.loss, "gradient_norm": p.gradient_norm, "learning_rate": p.learning_rate, **p.found}
        for name, value in values.items():
            self.writer.add_scalar(name, value, p.step)
        self.writer.flush()
