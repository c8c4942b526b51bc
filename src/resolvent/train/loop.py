"""The training loop: one for all tasks. State is explicit and on disk, so that an interrupted run can resume."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch

from resolvent.batch import IGNORED
from resolvent.errors import RunError, SettingError
from resolvent.files import locked, require_writable
from resolvent.model import LanguageModel
from resolvent.ops.cpu.memory import tune_allocator
from resolvent.tasks import Task
from resolvent.train import checkpoint, config_file, metrics, record, shards
from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.config_file import write_config
from resolvent.train.control import Control, OnProgress, Progress, StoppedError
from resolvent.train.evaluate import evaluate
from resolvent.train.metrics import MetricsLog, StepMetrics
from resolvent.train.model_source import load_start
from resolvent.train.precision import autocast
from resolvent.train.processes import DistributedModel, Processes, process_rank
from resolvent.train.record import CurvePoint, Environment, Record
from resolvent.train.state import SavedRun, TrainState

_AVERAGED = 100  # steps that the norm of the gradient is averaged over
_KEPT = 2**30  # bytes of a freed block that is kept on a CPU: fresh pages were a seventh of a small model's step
_SAVING_SHARE = 50  # times as long as writing a checkpoint took is trained before the next one for its age


class DivergedError(RunError):
    """Loss or gradients were not finite for too long."""


def train(
    config: RunConfig,
    folder: Path | None = None,
    on_progress: OnProgress = lambda _: None,
    control: Control | None = None,
) -> Record:
    """Train from scratch, or resume from the checkpoint in the folder; the run's record.

    A finished run is not trained again: its record is read and returned, from a read-only folder, too. Of several
    processes, all must call this; the first one writes, and reports progress.

    Raises:
        StoppedError: `control.stop` said so. The same call resumes.
    """
    config, control = config.prepared(), control or Control()
    finished = _finished(config, folder, control)
    if finished is not None:
        return finished
    first = process_rank() == 0
    if folder is not None and (first or config.train.sharded):  # all write shards
        require_writable(folder)
    with nullcontext() if folder is None or not first else locked(folder):
        finished = _finished(config, folder, control)  # by another process, while this one came for the lock
        if finished is not None:
            return finished
        with Processes.init(config.train.parallel, config.train.shard_group) as processes:
            return _run(config, folder, processes, on_progress, control)


def _run(
    config: RunConfig, folder: Path | None, processes: Processes, on_progress: OnProgress, control: Control
) -> Record:
    """From the first step, or the last checkpoint, to the record; then the model is gone, before the processes are."""
    trainer = _Trainer(config, folder, processes, control)
    trainer.resume()
    control.on_start(trainer.state)
    trainer.train(on_progress)
    control.on_trained()
    return trainer.finish()


class _Trainer:
    """One run in one process: model, optimizer and state, and what is done with them."""

    def __init__(self, config: RunConfig, folder: Path | None, processes: Processes, control: Control) -> None:
        settings = config.train
        processes.slices(settings.batch)  # raises an error if there are more processes than sequences
        if settings.sharded:
            shards.require()
        torch.set_num_threads(settings.threads)
        if processes.device.type == "cpu":
            tune_allocator(_KEPT)
        self.config, self.folder, self.processes, self.control = config, folder, processes, control
        self.model = LanguageModel.seeded(config.model, settings.seed)
        if folder is None or not checkpoint.exists(folder):
            load_start(self.model, settings)
        self.model.to(processes.device)
        self.model.recompute = settings.recompute
        self.distributed = processes.distribute(self.model)
        self.optimizer = make_optimizer(self.model, settings)
        self.state = TrainState()
        self.log = MetricsLog(None if folder is None or not processes.first else folder / metrics.FILE)
        self.saved_at = time.perf_counter()
        self.saving_took = 0.0

    def resume(self) -> None:
        """Restore the latest checkpoint, if there is one."""
        folder = self.folder
        if folder is not None:
            extend = self.control.extend
            saved = checkpoint.read(folder, self.model, self.optimizer, self.processes,
                                    lambda saved: _require_same(self.config, saved.config, folder, extend))  # fmt: skip
            if saved is not None:
                self.state = saved.state
                if saved.config.train.steps != self.config.train.steps:
                    self.state.extended_at = (*self.state.extended_at, self.state.step)
            elif (folder / record.FILE).exists():  # of fewer steps: finished, and without what is needed to go on
                raise SettingError(
                    f"{folder} is finished and has no checkpoint to extend it from: expected the steps that it was "
                    f"trained for, or another --out, which may start from its weights with --from {folder}."
                )
        self.log.truncate_after(self.state.step)
        if folder is not None and self.processes.first:  # after what is there has been compared with the settings
            write_config(folder / config_file.FILE, self.config)
            self.config.task.save_files(folder)

    def train(self, on_progress: OnProgress) -> None:
        """Take steps until the last, or until the task is solved."""
        settings, state = self.config.train, self.state
        begin, before = time.perf_counter(), state.seconds
        while state.step < settings.steps and state.solved_at is None:
            loss, norm = self._step()
            state.seconds = before + time.perf_counter() - begin
            last = state.step == settings.steps
            evaluated = last or state.step % settings.eval_every == 0
            if evaluated:
                self._evaluate(loss)
            self._report(loss, norm, evaluated, on_progress)
            stop, overdue = self._requests()
            if stop or (self.control.keep if last else overdue or state.step % settings.checkpoint_every == 0):
                self._save()
            if stop:
                raise StoppedError(state.step, settings.steps)

    def _requests(self) -> tuple[bool, bool]:
        """Whether to stop here, and whether the last checkpoint is too old: alike on all processes."""
        control = self.control
        if control.stop is None and control.save_seconds == math.inf:
            return False, False
        age = time.perf_counter() - self.saved_at
        overdue = age >= max(control.save_seconds, _SAVING_SHARE * self.saving_took)
        requests = [control.stop is not None and control.stop(), overdue and self.processes.first]
        if self.processes.count == 1:
            return requests[0], requests[1]
        stop, overdue = self.processes.all_reduce(torch.tensor(requests, device=self.processes.device).int()).tolist()
        return stop > 0, overdue > 0

    def _save(self) -> None:
        if self.folder is not None:
            begin = time.perf_counter()
            saved = SavedRun(self.config, self.state)
            checkpoint.write(self.folder, self.model, self.optimizer, saved, self.processes)
            self.saved_at = time.perf_counter()
            self.saving_took = self.saved_at - begin

    def finish(self) -> Record:
        """Evaluate, and write the model and the record, whose existence says that the run is finished."""
        state = self.state
        result = Record(
            config=self.config,
            environment=Environment.current(),
            parameters=self.model.parameter_count(),
            seconds=state.seconds,
            steps=state.step,
            tokens=state.tokens,
            skipped_steps=state.skipped_steps,
            solved_at=state.solved_at,
            evaluation=evaluate(self.model, self.config, self.processes, on_batch=self.control.on_evaluation),
            curve=state.curve,
            extended_at=state.extended_at,
        )
        if self.folder is not None:
            model = self.processes.gather_model(self.model)
            if self.processes.first:
                model.save(self.folder / "model")
                self.config.task.save_files(self.folder / "model")
                result.write(self.folder / record.FILE)
                if not self.control.keep:
                    checkpoint.remove(self.folder)
            self.processes.barrier()  # the record exists when any of them returns
        return result

    def _step(self) -> tuple[float, float]:
        """Take one step, and count it: loss, and norm of the gradient."""
        settings, state = self.config.train, self.state
        max_norm = math.inf
        if settings.spike is not None and state.average_norm and state.step >= settings.warmup:
            max_norm = settings.spike * state.average_norm
        scale = state.loss_scale if settings.precision == "float16" else 1.0
        loss, norm, tokens = take_step(
            self.distributed, self.optimizer, self.config.task, settings, state.step, max_norm, scale
        )
        if settings.precision == "float16":
            state.adapt_scale(overflowed=not math.isfinite(norm))
        _count_skipped(loss, norm, max_norm, state, settings)
        state.step += 1
        state.tokens += tokens
        return loss, norm

    def _evaluate(self, loss: float) -> None:
        """Add a point to the curve; an accuracy on full sizes may end the run."""
        settings, state = self.config.train, self.state
        value = evaluate(self.model, self.config, self.processes, quick=True).value
        state.curve = (*state.curve, CurvePoint(state.step, loss, value))
        solved = settings.solved is not None and self.config.task.measure == "accuracy" and value >= settings.solved
        if solved and settings.divisor(state.step) == 1:
            state.solved_at = state.step

    def _report(self, loss: float, norm: float, evaluated: bool, on_progress: OnProgress) -> None:
        settings, state, measure = self.config.train, self.state, self.config.task.measure
        rate, speed = learning_rate(settings, state.step - 1), state.tokens / state.seconds
        value = state.curve[-1].value if state.curve else None
        if evaluated or state.step % settings.log_every == 0:
            self.log.write(StepMetrics(state.step, loss, rate, norm, state.seconds, speed,
                                       **({measure: value} if evaluated else {})))  # fmt: skip
        if self.processes.first:
            on_progress(Progress(state.step, settings.steps, loss, norm, rate, speed, measure, value))


def take_step(
    model: DistributedModel, optimizer: torch.optim.Optimizer, task: Task, settings: TrainConfig, step: int,
    max_norm: float = math.inf, scale: float = 1.0,
) -> tuple[float, float, int]:  # fmt: skip
    """One step on batch number `step`: loss, norm of the gradient, tokens.

    If the loss is not finite, or the gradient's norm is not below `max_norm`, the weights stay as they are. The loss is
    multiplied by `scale` for the backward pass, and gradients are divided by it.
    """
    processes = model.processes
    batch = task.batch(settings.seed, step, settings.batch, divisor=settings.divisor(step))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
    total, scored = torch.zeros((), device=processes.device), int((batch.targets != IGNORED).sum())
    slices = processes.slices(settings.batch, settings.accumulate)
    for number, rows in enumerate(slices, 1):
        piece = batch.rows(rows)
        share = int((piece.targets != IGNORED).sum()) / scored
        goals = piece.targets if share else piece.tokens  # any will do with no weight, and all processes take this pass
        tokens, targets = (torch.from_numpy(t).to(processes.device) for t in (piece.tokens, goals))
        with model.micro_batch(last=number == len(slices)):
            with autocast(processes.device, settings.precision):
                loss = model.loss(tokens, targets) * share
            (loss * scale if scale != 1 else loss).backward()
        total += loss.detach()
    total = processes.all_reduce(total)
    if scale != 1:
        for parameter in model.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
    value, norm = float(total), model.clip_gradients(settings.clip)
    if math.isfinite(value) and norm < max_norm:
        optimizer.step()
    model.zero_gradients()
    return value, norm, batch.tokens.size


def make_optimizer(model: LanguageModel, settings: TrainConfig) -> torch.optim.AdamW:
    """AdamW; the model says which parameters decay."""
    groups = model.parameter_groups(settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(settings.beta_1, settings.beta_2))


def learning_rate(settings: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine to zero. Steps count from 0."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def _finished(config: RunConfig, folder: Path | None, control: Control) -> Record | None:
    """The record of a finished run with these settings; one that solved its task is finished for any more steps."""
    if folder is None or not (folder / record.FILE).exists():
        return None
    finished = Record.read(folder / record.FILE)
    _require_same(config, finished.config, folder, control.extend)
    if finished.config.train.steps < config.train.steps and finished.solved_at is None:
        return None
    if process_rank() == 0 and not control.keep:
        with suppress(OSError):  # a disk may be read-only by now
            checkpoint.remove(folder)  # if a kill came between the record and this
    return finished


def _require_same(config: RunConfig, saved: RunConfig, folder: Path, extend: bool) -> None:
    """The settings of a saved run, or, to extend it, more steps."""
    if extend and config.train.steps > saved.train.steps:
        saved = saved.with_steps(config.train.steps)
    if different := config.differences(saved):
        raise SettingError(
            f"{folder} holds a run with other settings ({different}): expected another folder, or the same settings."
        )


def _count_skipped(loss: float, norm: float, max_norm: float, state: TrainState, settings: TrainConfig) -> None:
    if math.isfinite(loss) and norm < max_norm:
        state.skipped_in_a_row = 0
        seen = min(norm, 2 * state.average_norm or norm)  # a spike during warm-up does not raise the average much
        state.average_norm += (seen - state.average_norm) / min(state.step + 1, _AVERAGED)
        return
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row >= settings.patience:
        what = "not finite" if max_norm == math.inf else f"not finite, or a norm above {max_norm:.3g},"
        raise DivergedError(
            f"loss {loss}, gradient norm {norm} at step {state.step + 1}: {what} {state.skipped_in_a_row} times in a "
            "row. Try a smaller learning_rate, a longer warmup or float32."
        )
