"""Progress of runs, on standard error: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from resolvent.studies.grid import CellProgress

_LIVE, _EVERY = 0.2, 15.0  # seconds between updates on a terminal, and between lines elsewhere


class StatusLine:
    """One run: a line that is overwritten on a terminal."""

    def __init__(self) -> None:
        self.shown, self.begin, self.first = 0.0, time.monotonic(), -1.0

    def show(self, text: str, share: float) -> None:
        now, live = time.monotonic(), sys.stderr.isatty()
        if self.first < 0:  # a resumed run has done some of it before
            self.begin, self.first = now, share
        if now - self.shown < (_LIVE if live else _EVERY):
            return
        self.shown = now
        left = (now - self.begin) * (1 - share) / max(share - self.first, 1e-9)
        print(
            f"{text}  {left:.0f} s left" if share > self.first else text,
            file=sys.stderr,
            end="\r" if live else "\n",
            flush=True,
        )

    def end(self) -> None:
        if sys.stderr.isatty():
            print(" " * 100, file=sys.stderr, end="\r")


class GridDisplay:
    """A grid of runs: a table of the running cells."""

    def __init__(self, total: int) -> None:
        self.total, self.shown, self.begin = total, time.monotonic(), time.monotonic()
        self.live = Live(console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None

    def __enter__(self) -> GridDisplay:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        if self.live is not None:
            self.live.stop()

    def show(self, running: list[CellProgress], finished: int) -> None:
        title = f"{finished} of {self.total} cells, {time.monotonic() - self.begin:.0f} s"
        rows = [
            (each.cell.name, f"{each.step:,}/{each.cell.config.train.steps:,}",
             "" if each.loss is None else f"{each.loss:.3f}", "" if each.value is None else f"{each.value:.3f}")
            for each in running
        ]  # fmt: skip
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
