"""One call of `resolvent train`: says what the run will take, trains, and leaves a checkpoint whatever ends it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from resolvent.cli.shared import say
from resolvent.errors import SettingError
from resolvent.train.record import FILE, Record

if TYPE_CHECKING:
    from resolvent.cli.display import RunDisplay
    from resolvent.train import Progress, RunConfig
    from resolvent.train.plan import RunPlan
    from resolvent.train.state import TrainState

_SAVE_SECONDS = 60.0  # between checkpoints: what kill -9 can lose
_MEASURED_STEPS, _MEASURED_SECONDS = 10, 10.0  # the first of them is when the time that is left is estimated
_WORTH_SAYING = 60.0  # seconds that are
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C; a scheduler, or kill; a terminal that is closed
_COMMAND = "resolvent"
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # in the environment of processes that torchrun started


class Session:
    """A run with its folder. `yes`: go on whatever it takes."""

    def __init__(self, config: RunConfig, folder: Path, *, yes: bool) -> None:
        self.config, self.folder, self.yes = config, folder, yes
        self.resume = command_line(sys.argv, folder)
        self.interruption = Interruption(self.resume)
        self.processes = int(os.environ.get("WORLD_SIZE", "1"))
        self.first: tuple[int, float] | None = None  # the first step, which may have compiled, and when it was done
        self.measured = False

    def train(self, display: RunDisplay) -> Record:
        """The run's record. A run that is stopped ends the process, and says how to resume it."""
        from resolvent.train import Control, StoppedError, train

        if not self.is_finished():
            self._announce()

        def on_progress(p: Progress) -> None:
            display.step(p)
            self._measure(p)

        control = Control(
            stop=lambda: self.interruption.received is not None,
            extend=True,
            keep=True,
            save_seconds=_SAVE_SECONDS,
            on_start=self._begin,
            on_trained=self.interruption.nothing_left,
            on_evaluation=display.evaluation,
        )
        try:
            with self.interruption.listening():
                return train(self.config, self.folder, on_progress, control)
        except StoppedError as stopped:
            display.clear()  # which would break the command into lines
            say(f"{stopped}; its checkpoint is in {self.folder}. To resume:\n  {self.resume}")
            raise typer.Exit(self.interruption.exit_code) from None

    def is_finished(self) -> bool:
        """Whether all that is left is to print the record; what is wrong with it, `train` says."""
        path = self.folder / FILE
        if not path.exists():
            return False
        record = Record.read(path)
        return record.solved_at is not None or record.config.train.steps >= self.config.train.steps

    def _announce(self) -> None:
        """Say what the run will take, and raise an error if that is more memory than is free."""
        from resolvent.train.plan import RunPlan, available_bytes, in_bytes
        from resolvent.train.processes import default_device

        plan = RunPlan.of(self.config, self.processes)
        say(str(plan))
        available = available_bytes(default_device(int(os.environ.get("LOCAL_RANK", "0"))))
        if not self.yes and plan.cost.peak_bytes > available:
            raise SettingError(
                f"expected a run that fits into memory, got one of {in_bytes(plan.cost.peak_bytes)} where "
                f"{in_bytes(available)} are free: {_fitting(plan, available)}. --yes starts it anyway."
            )

    def _begin(self, state: TrainState) -> None:
        """Say what is resumed, and what extending a run does to its learning rate."""
        from resolvent.train.loop import learning_rate

        settings = self.config.train
        if state.step:
            rest = "" if state.step < settings.steps else ": evaluating"
            say(f"resuming after step {state.step:,} of {settings.steps:,}{rest}")
        if state.step and state.extended_at[-1:] == (state.step,):
            rate = learning_rate(settings, state.step)
            say(
                f"extended: from here on the learning rate follows the schedule of {settings.steps:,} steps, "
                f"{rate:.2g} now and zero at the end. A run of as many steps from the start differs."
            )

    def _measure(self, p: Progress) -> None:
        """After a few steps, say how long the rest takes: by its tokens, since a curriculum begins with short ones."""
        from resolvent.train.plan import in_time, tokens_between

        now = time.perf_counter()
        if self.first is None:
            self.first = p.step, now
            return
        step, begin = self.first
        if self.measured or (p.step - step < _MEASURED_STEPS and now - begin < _MEASURED_SECONDS):
            return
        self.measured = True
        speed = tokens_between(self.config, step, p.step) / (now - begin)
        seconds_left = tokens_between(self.config, p.step, p.steps) / speed
        if seconds_left > _WORTH_SAYING:
            say(
                f"measured: {(now - begin) / (p.step - step):.2g} s a step, {speed:,.0f} tokens/s; "
                f"about {in_time(seconds_left)} to go on this device, evaluations aside"
            )


def _fitting(plan: RunPlan, available: float) -> str:
    """What would make it fit here, or where it would."""
    from resolvent.train.plan import LARGEST_GPU, in_bytes

    settings = plan.that_fits(available)
    if settings:
        return f"{settings} would fit, and compute the same but for rounding"
    name, memory = LARGEST_GPU
    state = f"weights, gradients and moments alone take {in_bytes(plan.cost.state_bytes)}"
    if plan.cost.state_bytes > memory:
        return f"{state}; train.parallel=shard divides them among GPUs"
    settings = plan.that_fits(memory)
    return f"{state}; one {name} would do{f' with {settings}' if settings else ''}"


class Interruption:
    """What has been received so far, and the command that resumes."""

    def __init__(self, resume: str) -> None:
        self.resume = resume
        self.received: signal.Signals | None = None
        self.saved = False  # all steps: then a signal has nothing to wait for

    def nothing_left(self) -> None:
        """All steps are saved."""
        self.saved = True

    @property
    def exit_code(self) -> int:
        """As shells say it: 128 and the number of the signal."""
        return 128 + (self.received or signal.SIGINT)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive signals in here, but for those that this process was started to ignore."""
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
            numbers = []
        before = {number: signal.getsignal(number) for number in numbers}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is None and not self.saved:
            self.received = signal.Signals(number)
            again = "" if _TORCHRUN in os.environ else "; once more to stop at once"
            _say(f"{self.received.name}: stopping after this step, with a checkpoint{again}")
        elif _TORCHRUN not in os.environ:  # which hands each signal on to its processes, and Ctrl-C reaches them twice
            self.received = signal.Signals(number)
            state = "all steps are done, and saved; to evaluate" if self.saved else "to resume from the last checkpoint"
            _say(f"stopped at once; {state}:\n  {self.resume}")
            raise SystemExit(self.exit_code)


def _say(message: str) -> None:
    """Not by print, which a signal may have come in the middle of; nor to a terminal that is gone."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            clear = "\r\x1b[2K" if sys.stderr.isatty() else ""
            os.write(2, f"{clear}{message}\n".encode(sys.stderr.encoding or "ascii", sys.stderr.errors or "replace"))


def command_line(arguments: Sequence[str], out: Path) -> str:
    """The command that this process runs, with its folder named: `resolvent train … --out FOLDER`."""
    named = any(word == "--out" or word.startswith("--out=") for word in arguments)
    words = [*arguments[1:], *([] if named else ["--out", str(out)])]
    if _TORCHRUN in os.environ:  # whose own options nobody here knows
        return f"torchrun … -m {shlex.join([_COMMAND, *words])}"
    return shlex.join([*_program(arguments[0]), *words])


def _program(script: str) -> list[str]:
    """How this process was started, in words that the shell understands when they are pasted."""
    if Path(script).name == _COMMAND:
        return [_name_or_path(_COMMAND, script)]
    return [_name_or_path("python", sys.executable), "-m", _COMMAND]


def _name_or_path(name: str, path: str) -> str:
    """The name, if a shell finds this very file by it; otherwise its path, as in an environment that is not active."""
    known = path if path == name else shutil.which(name)
    return name if known is not None and Path(known).absolute() == Path(path).absolute() else path
