"""Metrics for others to show: TensorBoard, trackio and wandb behind one interface, imported only when asked for.

`metrics.jsonl` is always written, and needs none of them. Where data go is each library's own affair: TensorBoard's go
into the folder of the run; trackio's into a database in the user's cache; wandb's to its server, or into the folder of
the run with WANDB_MODE=offline in the environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

from resolvent.errors import SettingError, closest

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from resolvent.train.config import RunConfig
    from resolvent.train.loop import Progress

PROJECT = "resolvent"
_EVERY = 10  # steps


class Tracker(Protocol):
    """Takes numbers by name, step by step."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step. A resumed run may repeat some steps."""

    def close(self) -> None:
        """All has been logged."""


class _TensorBoard:
    _writer: SummaryWriter | None = None

    def __init__(self, folder: Path, _: RunConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (now, and not after the first steps)
        except ImportError as error:
            _missing("tensorboard", "board", error)
        self._folder = folder / "tensorboard"

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self._writer is None:  # steps that a resumed run repeats replace the first ones
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Trackio:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        try:
            import trackio
        except ImportError as error:
            _missing("trackio", "trackio", error)
        self._library = trackio
        trackio.init(project=PROJECT, name=folder.name, resume="allow", config=settings_of(config))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._library.log(dict(values), step=step)

    def close(self) -> None:
        self._library.finish()


class _Wandb:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            _missing("wandb", "wandb", error)
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]  # a resumed run is the same one
        self._run = wandb.init(project=PROJECT, name=folder.name, id=identity, resume="allow", dir=str(folder),
                               config=settings_of(config))  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, RunConfig], Tracker]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}


class Tracking:
    """A run's progress, handed to trackers: every tenth step, the last, and evaluations."""

    def __init__(self, names: Sequence[str], folder: Path | None, config: RunConfig) -> None:
        for name in names:
            if name not in TRACKERS:
                raise SettingError(
                    f"unknown tracker '{name}': expected {', '.join(TRACKERS)}.{closest(name, TRACKERS)}"
                )
        if names and folder is None:
            raise SettingError("expected --out, the folder of the run, beside --track.")
        self._trackers = [TRACKERS[name](folder, config) for name in dict.fromkeys(names) if folder is not None]
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
        if values:
            for tracker in self._trackers:
                tracker.log(values, p.step)


def settings_of(config: RunConfig) -> dict[str, object]:
    """All settings by their names in full, such as `train.steps`."""
    return {f"{section}.{key}": value for section, values in config.to_dict().items() for key, value in values.items()}


def _missing(name: str, extra: str, error: ImportError) -> NoReturn:
    raise ImportError(f"--track {name} needs a package: pip install 'resolvent[{extra}]', or do without.") from error
