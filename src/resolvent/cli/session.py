"""One call of `resolvent train`: says what the run will take, trains, and leaves a checkpoint whatever ends it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from resolvent.cli.interruption import Interruption, command_line
from resolvent.cli.shared import say
from resolvent.errors import SettingError
from resolvent.train.record import FILE, Record

if TYPE_CHECKING:
    from resolvent.cli.display import RunDisplay
    from resolvent.train import Progress, RunConfig
    from resolvent.train.control import OnProgress
    from resolvent.train.plan import RunPlan
    from resolvent.train.state import TrainState

_SAVE_SECONDS = 60.0  # between checkpoints: what kill -9 can lose
_MEASURED_STEPS, _MEASURED_SECONDS = 10, 10.0  # the first of them is when the time that is left is estimated
_WORTH_SAYING = 60.0  # seconds that are
_REFUSED = 2  # the exit code of errors
_EXPECTED = "expected a run that fits on this device and takes at most a day; --yes starts it anyway."


class Session:
    """A run with its folder. `yes`: go on whatever it takes."""

    def __init__(self, config: RunConfig, folder: Path, *, yes: bool) -> None:
        self.config, self.folder, self.yes = config, folder, yes
        self.resume = command_line(sys.argv, folder)
        self.interruption = Interruption(self.resume)
        self.processes = int(os.environ.get("WORLD_SIZE", "1"))
        self.plan: RunPlan | None = None
        self.first: tuple[int, float] | None = None  # the first step, which may have compiled, and when it was done
        self.seconds_left: float | None = None

    def train(self, display: RunDisplay, track: OnProgress) -> Record:
        """The run's record. A run that is stopped ends the process, and says how to resume it."""
        from resolvent.train import Control, StoppedError, train

        if not self.is_finished():
            self._announce()

        def on_progress(p: Progress) -> None:
            display.step(p)
            track(p)
            self._measure(p)

        control = Control(
            stop=self._stop,
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
            self._explain(str(stopped))
            raise typer.Exit(self.interruption.exit_code if self.interruption.received else _REFUSED) from None

    def is_finished(self) -> bool:
        """Whether all that is left is to print the record; what is wrong with it, `train` says."""
        path = self.folder / FILE
        if not path.exists():
            return False
        record = Record.read(path)
        return record.solved_at is not None or record.config.train.steps >= self.config.train.steps

    def _announce(self) -> None:
        """Say what the run will take, and raise an error if that is more than a day, or more memory than is free."""
        from resolvent.train.plan import RunPlan

        self.plan = RunPlan.of(self.config, self.processes)
        say(str(self.plan))
        if not self.yes and (obstacles := self._obstacles(self.plan)):
            rows = {**obstacles, "GPUs": self.plan.on_gpus(), "or": "fewer train.steps, or a smaller --preset"}
            raise SettingError(f"{_EXPECTED}\n" + "\n".join(f"  {name:7} {text}" for name, text in rows.items()))

    def _obstacles(self, plan: RunPlan) -> dict[str, str]:
        """What is too much for this device, and what would do."""
        from resolvent.train import checkpoint
        from resolvent.train.plan import DAY, available_bytes, in_bytes, tokens_between
        from resolvent.train.processes import default_device

        device = default_device(int(os.environ.get("LOCAL_RANK", "0")))
        obstacles, available = {}, available_bytes(device)
        if plan.cost.peak_bytes > available:
            need = f"{in_bytes(plan.cost.peak_bytes)} needed, {in_bytes(available)} free"
            obstacles["memory"] = f"{need}: {_fitting(plan, available)}"
        latest = checkpoint.latest(self.folder)
        done = 0 if latest is None else latest.run.state.step
        left = tokens_between(self.config, done, self.config.train.steps) / plan.tokens / self.processes
        seconds, reason = plan.least_seconds(device, left)
        if seconds > DAY and os.environ.get("RANK", "0") == "0":  # one error is enough: torchrun ends the others
            obstacles["time"] = reason
        return obstacles

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
        if self.seconds_left is not None or (p.step - step < _MEASURED_STEPS and now - begin < _MEASURED_SECONDS):
            return
        speed = tokens_between(self.config, step, p.step) / (now - begin)
        self.seconds_left = tokens_between(self.config, p.step, p.steps) / speed
        if self.seconds_left > _WORTH_SAYING:
            say(
                f"measured: {(now - begin) / (p.step - step):.2g} s a step, {speed:,.0f} tokens/s; "
                f"about {in_time(self.seconds_left)} to go on this device, evaluations aside"
            )

    def _takes_too_long(self) -> bool:
        from resolvent.train.plan import DAY

        return not self.yes and self.seconds_left is not None and self.seconds_left > DAY

    def _stop(self) -> bool:
        return self.interruption.received is not None or self._takes_too_long()

    def _explain(self, stopped: str) -> None:
        """After a checkpoint has been written: why, and the command that goes on."""
        if self._takes_too_long() and self.plan is not None:
            say(f"{stopped}: it would take more than a day. Its checkpoint is in {self.folder}.")
            say(f"  GPUs    {self.plan.on_gpus()}")
            say(f"To continue anyway:\n  {self.resume} --yes")
        else:
            say(f"{stopped}; its checkpoint is in {self.folder}. To resume:\n  {self.resume}")


def _fitting(plan: RunPlan, available: float) -> str:
    """What would make it fit here, or where it would."""
    from resolvent.train.plan import in_bytes, largest_gpu

    settings = plan.that_fits(available)
    if settings:
        return f"{settings} would fit, and compute the same but for rounding"
    name, memory = largest_gpu()
    state = f"weights, gradients and moments alone take {in_bytes(plan.cost.state_bytes)}"
    if plan.cost.state_bytes > memory:
        return f"{state}; train.parallel=shard divides them among GPUs"
    settings = plan.that_fits(memory)
    return f"{state}; one {name} would do{f' with {settings}' if settings else ''}"
