"""Progress on standard error: live on a terminal, where it vanishes when done; a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import ProgressColumn as Column
from rich.table import Table

if TYPE_CHECKING:
    from resolvent.studies.grid import CellProgress
    from resolvent.train import Progress

_EVERY = 15.0  # seconds between lines where there is no terminal


def bars(*columns: Column) -> Bars:
    """Bars of all kinds of work: after a description and the bar itself come these columns."""
    shown = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), *columns)
    return Bars(*shown, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


class RunDisplay:
    """One run: a bar of its steps, and then one of its final evaluation."""

    def __init__(self) -> None:
        self.bars, self.shown = bars(TextColumn("{task.fields[text]}", markup=False), TimeRemainingColumn()), 0.0
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> RunDisplay:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the bars; what is printed while they are shown stands above them, in lines of their width."""
        self.bars.stop()

    def step(self, p: Progress) -> None:
        value = "" if p.value is None else f"  {p.measure} {p.value:.3f}"
        text = f"step {p.step:,}/{p.steps:,}  loss {p.loss:.3f}{value}  {p.tokens_per_second:,.0f} tokens/s"
        self._show("training", p.step, p.steps, text)

    def evaluation(self, done: int, total: int) -> None:
        """Batches of the final evaluation, which follows the last step."""
        for name, task in self.tasks.items():
            self.bars.update(task, visible=name == "evaluating")
        self._show("evaluating", done, total, f"batch {done:,}/{total:,}")

    def _show(self, stage: str, done: int, total: int, text: str) -> None:
        if not self.bars.disable:
            if stage not in self.tasks:  # a resumed run has done some of it before
                self.tasks[stage] = self.bars.add_task(stage, completed=done, total=total, text=text)
            self.bars.update(self.tasks[stage], completed=done, text=text)
        elif time.monotonic() - self.shown >= _EVERY:
            self.shown = time.monotonic()
            print(f"{stage}: {text}", file=sys.stderr, flush=True)


class GridDisplay:
    """A grid of runs: a table of the running cells."""

    def __init__(self, total: int) -> None:
        self.total, self.shown, self.begin = total, time.monotonic(), time.monotonic()
        self.live = Live(console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None

    def __enter__(self) -> GridDisplay:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, running: list[CellProgress], finished: int) -> None:
        title = f"{finished} of {self.total} cells, {time.monotonic() - self.begin:.0f} s"
        rows = [
            (
                each.cell.name,
                f"{each.step:,}/{each.cell.config.train.steps:,}",
                "" if each.loss is None else f"{each.loss:.3f}",
                "" if each.value is None else f"{each.value:.3f}",
            )
            for each in running
        ]
        if self.live is not None:
            table = Table(box=None, title=title, title_justify="left")
            for name in ("cell", "step", "loss", "evaluation"):
                table.add_column(name)
            for row in rows:
                table.add_row(*row)
            self.live.update(table)
        elif time.monotonic() - self.shown >= _EVERY:
            self.shown = time.monotonic()
            print(title + "".join(f"; {' '.join(row)}" for row in rows), file=sys.stderr, flush=True)
