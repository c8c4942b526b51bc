"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.train.loop import Progress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_EVERY = 10  # steps


class Board:
    """Writes the progress of a run into a folder that TensorBoard reads."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401
        except ImportError as error:
            raise ImportError("TensorBoard is missing: pip install 'resolvent[board]', or do without.") from error
        self.folder = folder
        self.writer: SummaryWriter | None = None
        self.value: float | None = None

    def write(self, p: Progress) -> None:
        """Every tenth step, the last, and evaluations. Steps that a resumed run repeats replace the first ones."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=p.step)
        values = {}
        if p.step % _EVERY == 0 or p.step == p.steps:
            values = {"loss": p.loss, "gradient_norm": p.gradient_norm, "learning_rate": p.learning_rate}
        if p.value is not None and p.value != self.value:
            values[p.measure] = self.value = p.value
        for name, value in values.items():
            self.writer.add_scalar(name, value, p.step)
        if values:
            self.writer.flush()
