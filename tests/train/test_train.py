"""The loop: exact after a kill, honest about what is not finite."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from resolvent.files import BusyError, locked
from resolvent.model import LanguageModel, ModelConfig
from resolvent.tasks import Copy
from resolvent.train import DivergedError, Progress, Record, RunConfig, TrainConfig, checkpoint, train
from resolvent.train.evaluate import accuracy
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.loop import learning_rate, make_optimizer

MODEL = ModelConfig(vocab_size=20, layers=2, dim=16, heads=2, pattern="exponential+cache", init_std=0.1)
TASK = Copy(vocab_size=20, length=8)


def config(**changes: Any) -> RunConfig:
    settings = {"steps": 24, "warmup": 4, "batch": 8, "eval_every": 8, "eval_batches": 2, "checkpoint_every": 5,
                "log_every": 1}  # fmt: skip
    return RunConfig(MODEL, TASK, TrainConfig(**(settings | changes)))


def essence(done: Record) -> Record:
    """All of a record but times."""
    return dataclasses.replace(done, seconds=0.0)


def losses(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["gradient_norm"]) for line in lines]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("stop", [5, 23])
def test_a_killed_run_goes_on_exactly(tmp_path: Path, stop: int) -> None:
    whole = train(config(), tmp_path / "whole")

    def kill(p: Progress) -> None:
        if p.step == stop:
            raise KilledError

    with pytest.raises(KilledError):
        train(config(), tmp_path / "cut", kill)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # half a line, as of a kill while it is written
    resumed = train(config(), tmp_path / "cut")
    assert essence(resumed) == essence(whole)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    weights = [LanguageModel.load(tmp_path / name / "model").state_dict() for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    done = train(config(), tmp_path)
    steps: list[Progress] = []
    assert train(config(), tmp_path, steps.append) == done
    assert not steps
    with pytest.raises(ValueError, match="holds a run with other settings"):
        train(config(steps=25), tmp_path)
    assert done.environment.packages["torch"] == torch.__version__
    assert done.parameters == LanguageModel(MODEL).parameter_count()


def test_what_is_not_finite_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = LanguageModel.loss, [0]

    def sometimes(self: LanguageModel, *arguments: Any, **named: Any) -> torch.Tensor:
        calls[0] += 1
        return real(self, *arguments, **named) * (math.nan if calls[0] in (3, 4, 9) else 1)

    monkeypatch.setattr(LanguageModel, "loss", sometimes)
    done = train(config(), tmp_path)
    assert done.skipped_steps == 3
    assert isinstance(done.evaluation, AccuracyEvaluation)
    assert math.isfinite(done.evaluation.accuracy)
    monkeypatch.setattr(LanguageModel, "loss", lambda self, *a, **n: real(self, *a, **n) * math.nan)
    with pytest.raises(DivergedError, match=r"not finite 4 times in a row. Try a smaller learning_rate"):
        train(config(patience=4))


def test_spikes_are_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = LanguageModel.loss, [0]

    def sometimes(self: LanguageModel, *arguments: Any, **named: Any) -> torch.Tensor:
        calls[0] += 1
        return real(self, *arguments, **named) * (1e4 if calls[0] in (2, 7, 8) else 1)

    monkeypatch.setattr(LanguageModel, "loss", sometimes)
    assert train(config()).skipped_steps == 0
    calls[0] = 0
    assert train(config(spike=50.0, warmup=4)).skipped_steps == 2  # not the one during warm-up
    calls[0] = 0
    with pytest.raises(DivergedError, match=r"norm above .* 2 times in a row"):
        train(config(spike=50.0, warmup=4, patience=2))
    calls[0] = 9
    assert train(config(spike=10.0, warmup=0)).skipped_steps == 0  # nothing is usual before the first step
    with pytest.raises(ValueError, match="expected spike > 1"):
        config(spike=0.5)


def test_parts_and_recomputation_change_nothing_but_rounding() -> None:
    whole = train(config())
    for changes in ({"accumulate": 3}, {"recompute": True}, {"accumulate": 2, "recompute": True}):
        found = train(config(**changes))
        losses = [[point.loss for point in done.curve] for done in (found, whole)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), changes  # 24 steps of training amplify rounding


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BusyError, match=r"another process is working in .*: wait for it"):
        train(config(), tmp_path)
    train(config(), tmp_path)
    assert not list(tmp_path.glob("check*"))
    (tmp_path / "checkpoint.safetensors").write_text("left by a kill after the record was written")
    train(config(), tmp_path)
    assert not list(tmp_path.glob("check*"))


def test_schedule() -> None:
    how = TrainConfig(steps=100, warmup=10, learning_rate=1.0)
    assert [learning_rate(how, step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert learning_rate(how, 55) == pytest.approx(0.5)
    assert 0 < learning_rate(how, 99) < 0.001
    assert {how.divisor(step) for step in range(100)} == {1}
    quarters = TrainConfig(steps=100, curriculum=0.75)
    assert [quarters.divisor(step) for step in (0, 24, 25, 49, 50, 74, 75, 99)] == [8, 8, 4, 4, 2, 2, 1, 1]
    short = TrainConfig(steps=100, curriculum=0.3)
    assert [short.divisor(step) for step in (0, 9, 10, 29, 30)] == [8, 8, 4, 2, 1]
    with pytest.raises(ValueError, match="curriculum is a share of the steps"):
        TrainConfig(curriculum=1.0)


def test_decay_spares_all_but_matrices_of_layers() -> None:
    model = LanguageModel(ModelConfig(layers=3, dim=16, heads=2, pattern=["dense", "first-order", "dense"],
                                      rule=["softmax", "mamba2", "distance"]))  # fmt: skip
    optimizer = make_optimizer(model, TrainConfig())
    decayed = {id(p) for p in optimizer.param_groups[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert names == {name for name, p in model.named_parameters()
                     if name.endswith(("values.weight", "output.weight", "scores.weight", "write_read.weight",
                                       "mlp_in.weight", "mlp_out.weight"))}  # fmt: skip
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_accuracy_by_counting() -> None:
    torch.manual_seed(0)
    task, model = Copy(vocab_size=20, length=8), LanguageModel(MODEL)
    found = accuracy(model, task.held_out(0, 8, 3))
    right = total = whole = 0
    for index in range(3):
        batch = task.batch(1 << 40, index, 8, size=(4, 6, 8)[index])
        guesses = model(torch.from_numpy(batch.tokens)).argmax(-1).numpy()
        scored = batch.targets != -100
        right += int((guesses == batch.targets)[scored].sum())
        total += int(scored.sum())
        whole += int(((guesses == batch.targets) | ~scored).all(1).sum())
    assert found.accuracy == right / total
    assert found.sequence_accuracy == whole / 24
    assert [sum(row.count for row in rows) for rows in found.slices.values()] == [total, total]
    assert list(found.slices) == ["size", "position"]


def test_settings_are_changed_by_name() -> None:
    changed = config().changed(["train.steps=7", "model.pattern=dense", "task.length=5", "train.solved=null"])
    assert changed.train.steps == 7
    assert changed.model.pattern == "dense"
    assert changed.task == Copy(vocab_size=20, length=5)
    assert config().changed(["task.length=1k"]).task == Copy(vocab_size=20, length=1024)
    for assignment, message in [
        ("train.step=7", "unknown setting 'train.step'.*Did you mean 'steps'"),
        ("steps=7", r"expected a setting as model.…=…"),
        ("train.steps=many", "expected train.steps to be an integer, such as 24, got 'many'"),
        ("train.recompute=1", "expected train.recompute to be true or false, such as false, got '1'"),
        ("task.length=2q", "expected an integer ≥ 1 or a string such as '128k', got '2q'"),
        ("train.steps=0", "expected steps to be int ≥ 1, got 0"),
        ("train.clip=0", "expected clip > 0, got 0"),
        ("model.pattern=denes", "Did you mean 'dense'"),
        ("task.vocab_size=null", "copy is missing a setting or has one of another type"),
        ("task.vocab_size=64", "expected a model with at least as many, got 20"),
    ]:
        with pytest.raises(ValueError, match=message):
            config().changed([assignment])


def test_what_a_kill_left_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    """Safetensors writes to a file of another name first."""
    for name in (".tmpAb12Cd", checkpoint.FILE, "metrics.jsonl"):
        (tmp_path / name).touch()
    checkpoint.remove(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
