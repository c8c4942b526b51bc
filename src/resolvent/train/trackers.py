"""Metrics for others to show: TensorBoard, trackio and wandb behind one interface, imported only when asked for.

`metrics.jsonl` is always written, and needs none of them. Where data go is each library's own affair: TensorBoard's go
into the folder of the run; trackio's into a database in the user's cache; wandb's to its server, or into the folder of
the run with WANDB_MODE=offline in the environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from resolvent.errors import SettingError, closest

if TYPE_CHECKING:
    from resolvent.train.config import RunConfig
    from resolvent.train.control import Progress

PROJECT = "resolvent"
_EVERY = 10  # steps


class Tracker(Protocol):
    """Takes numbers by name, step by step."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step. A resumed run may repeat some steps."""

    def close(self) -> None:
        """All has been logged."""


class _TensorBoard:
    def __init__(self, folder: Path, _: RunConfig, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that a resumed run repeats replace the first ones.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    def __init__(self, folder: Path, config: RunConfig, _: int) -> None:
        import trackio

        self._library = trackio
        trackio.init(project=PROJECT, name=folder.name, resume="allow", config=config.flat())

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._library.log(dict(values), step=step)

    def close(self) -> None:
        self._library.finish()


class _Wandb:
    def __init__(self, folder: Path, config: RunConfig, _: int) -> None:
        import wandb

        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]  # a resumed run is the same one
        self._run = wandb.init(project=PROJECT, name=folder.name, id=identity, resume="allow", dir=str(folder),
                               config=config.flat())  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


# By the name of the package: what makes a tracker for a folder, from a step on; and the extra that installs it.
TRACKERS: dict[str, tuple[Callable[[Path, RunConfig, int], Tracker], str]] = {
    "tensorboard": (_TensorBoard, "board"),
    "trackio": (_Trackio, "trackio"),
    "wandb": (_Wandb, "wandb"),
}


class Tracking:
    """A run's progress, handed to trackers: every tenth step, the last, and evaluations.

    What is missing raises an error at once; trackers begin with the first numbers, so that a finished run starts none.
    """

    def __init__(self, names: Sequence[str], folder: Path | None, config: RunConfig) -> None:
        for name in names:
            if name not in TRACKERS:
                raise SettingError(
                    f"unknown tracker '{name}': expected {', '.join(TRACKERS)}.{closest(name, TRACKERS)}"
                )
            if find_spec(name) is None:
                raise ImportError(
                    f"--track {name} needs a package: pip install 'resolvent[{TRACKERS[name][1]}]', or do without."
                )
        if names and folder is None:
            raise SettingError("expected --out, the folder of the run, beside --track.")
        self._names, self._folder, self._config = tuple(dict.fromkeys(names)), folder, config
        self._trackers: list[Tracker] = []
        self._value: float | None = None

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for tracker in self._trackers:
            tracker.close()

    def write(self, p: Progress) -> None:
        values: dict[str, float] = {}
        if p.step % _EVERY == 0 or p.step == p.steps:
            values = {"loss": p.loss, "gradient_norm": p.gradient_norm, "learning_rate": p.learning_rate,
                      "tokens_per_second": p.tokens_per_second}  # fmt: skip
        if p.value is not None and p.value != self._value:
            values[p.measure] = self._value = p.value
        if values and self._folder is not None:
            if not self._trackers:
                self._trackers = [TRACKERS[name][0](self._folder, self._config, p.step) for name in self._names]
            for tracker in self._trackers:
                tracker.log(values, p.step)
