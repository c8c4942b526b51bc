"""The training loop: one for all tasks. State is explicit and on disk, so that a run can be killed and go on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from resolvent.files import locked, room_for, write_text
from resolvent.model import LanguageModel
from resolvent.patterns.errors import RunError
from resolvent.tasks import IGNORED, Task
from resolvent.train import checkpoint, record, shards
from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.evaluate import accuracy
from resolvent.train.perplexity import on_text
from resolvent.train.processes import Processes, rank_here
from resolvent.train.text import Text

_MEMORY = 100  # steps that a usual gradient is averaged over
RECORD, METRICS = "run.json", "metrics.jsonl"


class DivergedError(RunError):
    """Loss or gradients were not finite for too long."""


@dataclass
class Progress:
    """Where a run stands: handed to `report` after every step."""

    step: int
    steps: int
    loss: float
    gradient_norm: float
    learning_rate: float
    found: dict[str, float]  # at the last evaluation: accuracy, or perplexity
    tokens_per_second: float


@dataclass
class _State:
    """What a checkpoint holds beside tensors."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    skipped: int = 0
    in_a_row: int = 0
    usual_norm: float = 0.0  # of the gradient, a running average
    curve: list[list[float]] = field(default_factory=list)  # step, loss, and accuracy or perplexity when evaluated
    solved_at: int | None = None


def train(
    config: RunConfig, folder: Path | None = None, report: Callable[[Progress], None] = lambda _: None
) -> dict[str, Any]:
    """Train from scratch, or on from the checkpoint in the folder; the run's record.

    A finished run is not trained again: its record is read and returned. Of several processes, all must call this; the
    first one writes, and reports.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    first = rank_here() == 0
    with nullcontext() if folder is None or not first else locked(folder):
        if folder is not None and (folder / RECORD).exists():
            done = record.read(folder / RECORD)
            _require_same(config, done["config"], folder)
            if first:
                checkpoint.remove(folder)  # if a kill came between the record and this
            return done
        with Processes.joined(config.train.parallel) as processes:
            return _train(config, folder, report, processes)


def _train(
    config: RunConfig, folder: Path | None, report: Callable[[Progress], None], processes: Processes
) -> dict[str, Any]:
    how, task = config.train, config.make_task()
    torch.set_num_threads(how.threads)
    processes.slices(how.batch)  # or a refusal, before anything is made
    if how.parallel == "shard":
        shards.require()
    model = LanguageModel.seeded(config.model, how.seed).to(processes.device)
    model.recompute = how.recompute
    processes.spread(model)
    optimizer = make_optimizer(model, how)
    state = _State()
    metrics = _Metrics(None if folder is None or not processes.first else folder / METRICS)
    if folder is not None:
        saved = checkpoint.read(folder, model, optimizer, processes,
                                lambda about: _require_same(config, about["config"], folder))  # fmt: skip
        state = state if saved is None else _State(**saved["state"])
    metrics.forget_after(state.step)
    begin, before = time.perf_counter(), state.seconds
    measure = "perplexity" if isinstance(task, Text) else "accuracy"
    while state.step < how.steps and state.solved_at is None:
        most = math.inf
        if how.spike is not None and state.usual_norm and state.step >= how.warmup:
            most = how.spike * state.usual_norm
        loss, norm, tokens = take_step(model, optimizer, task, how, state.step, processes, most)
        _count_faults(loss, norm, most, state, how)
        state.step += 1
        state.tokens += tokens
        state.seconds = before + time.perf_counter() - begin
        last = state.step == how.steps
        found: dict[str, float] = {}
        if last or state.step % how.eval_every == 0:
            found = {measure: evaluate(model, task, how, processes, part=True)[measure]}
            state.curve.append([state.step, loss, found[measure]])
            solved = how.solved is not None and measure == "accuracy" and found[measure] >= how.solved
            if solved and how.divisor(state.step) == 1:
                state.solved_at = state.step
        rate, speed = learning_rate(how, state.step - 1), state.tokens / state.seconds
        if found or state.step % how.log_every == 0:
            metrics.write(step=state.step, loss=loss, learning_rate=rate, gradient_norm=norm, seconds=state.seconds,
                          tokens_per_second=speed, **found)  # fmt: skip
        known = {measure: state.curve[-1][2]} if state.curve else {}
        if processes.first:
            report(Progress(state.step, how.steps, loss, norm, rate, known, speed))
        if folder is not None and not last and state.step % how.checkpoint_every == 0:
            about = {"config": config.to_dict(), "state": vars(state)}
            checkpoint.write(folder, model, optimizer, about, processes, how.parallel)
    result = {
        "config": config.to_dict(),
        "surroundings": record.surroundings(),
        "parameters": model.parameter_count(),
        "seconds": state.seconds,
        "steps": state.step,
        "tokens": state.tokens,
        "skipped_steps": state.skipped,
        "solved_at": state.solved_at,
        "evaluation": evaluate(model, task, how, processes),
        "curve": state.curve,
    }
    if folder is not None:
        whole = processes.gathered(model)
        if processes.first:
            whole.save(folder / "model")
            record.write(folder / RECORD, result)
            checkpoint.remove(folder)
        processes.wait()  # the record is there when any of them returns
    return {"format": record.FORMAT, "version": record.VERSION, **json.loads(json.dumps(result))}


def take_step(
    model: LanguageModel, optimizer: torch.optim.Optimizer, task: Task | Text, how: TrainConfig, step: int,
    processes: Processes, most: float = math.inf,
) -> tuple[float, float, int]:  # fmt: skip
    """One step on batch number `step`: loss, norm of the gradient, tokens.

    What is not finite, or has a gradient above `most`, changes nothing.
    """
    batch = task.batch(how.seed, step, how.batch, divisor=how.divisor(step))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(how, step)
    total, scored = torch.zeros((), device=processes.device), int((batch.targets != IGNORED).sum())
    for rows in processes.slices(how.batch, how.accumulate):
        piece = batch.rows(rows)
        share = int((piece.targets != IGNORED).sum()) / scored
        goals = piece.targets if share else piece.tokens  # any will do with no weight, and all processes take this pass
        tokens, targets = (torch.from_numpy(t).to(processes.device) for t in (piece.tokens, goals))
        with torch.autocast(processes.device.type, torch.bfloat16, enabled=how.precision == "bfloat16"):
            loss = model.loss(tokens, targets) * share
        loss.backward()
        total += loss.detach()
    total = processes.summed(total)
    processes.sum_gradients(model)
    value, size = float(total), processes.clip(model, how.clip)
    if math.isfinite(value) and size < most:
        optimizer.step()
    optimizer.zero_grad()
    return value, size, batch.tokens.size


def evaluate(
    model: LanguageModel, task: Task | Text, how: TrainConfig, processes: Processes, *, part: bool = False
) -> dict[str, Any]:
    """On what was not trained on; of a text, the first `eval_batches` alone if `part`."""
    if isinstance(task, Text):
        batches = how.eval_batches if part else None
        found = on_text(model, task, how.batch, precision=how.precision, batches=batches, processes=processes,
                        parts=how.accumulate)  # fmt: skip
    else:
        found = accuracy(model, task, how.seed, how.eval_batches, how.batch, how.precision, processes, how.accumulate)
    processes.settle(model)
    return found


def make_optimizer(model: LanguageModel, how: TrainConfig) -> torch.optim.AdamW:
    """AdamW; decay on the matrices of layers alone: not on embeddings, gates, decays, norms and biases."""
    gates = ("gate.weight", "coefficients.weight", "vectors.")
    decayed: list[torch.nn.Parameter] = []
    spared: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and not name.startswith("embedding") and not any(gate in name for gate in gates)
        (decayed if matrix else spared).append(parameter)
    groups = [{"params": decayed, "weight_decay": how.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=how.learning_rate, betas=(how.beta_1, how.beta_2))


def learning_rate(how: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine to zero. Steps count from 0."""
    if step < how.warmup:
        return how.learning_rate * (step + 1) / how.warmup
    along = (step - how.warmup) / max(how.steps - how.warmup, 1)
    return how.learning_rate * 0.5 * (1 + math.cos(math.pi * along))


def _require_same(config: RunConfig, saved: dict[str, Any], folder: Path) -> None:
    if other := config.differences(saved):
        raise ValueError(
            f"{folder} holds a run with other settings ({other}): expected another folder, or the same settings."
        )


def _count_faults(loss: float, norm: float, most: float, state: _State, how: TrainConfig) -> None:
    if math.isfinite(loss) and norm < most:
        state.in_a_row = 0
        seen = min(norm, 2 * state.usual_norm or norm)  # a spike during warm-up does not make others usual
        state.usual_norm += (seen - state.usual_norm) / min(state.step + 1, _MEMORY)
        return
    state.skipped += 1
    state.in_a_row += 1
    if state.in_a_row >= how.patience:
        what = "not finite" if most == math.inf else f"not finite, or a norm above {most:.3g},"
        raise DivergedError(
            f"loss {loss}, gradient norm {norm} at step {state.step + 1}: {what} {state.in_a_row} times in a row. "
            "Try a smaller learning_rate, a longer warmup or float32."
        )


class _Metrics:
    """Lines of JSON, one for each step that is logged."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **values: float) -> None:
        if self.path is not None:
            with room_for(self.path), self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")

    def forget_after(self, step: int) -> None:
        """What was logged after the checkpoint happens again."""
        if self.path is None or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text().splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:  # the line that was being written
                break
        write_text(self.path, "".join(kept))
