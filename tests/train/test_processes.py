"""Several processes find what one finds, replicated, sharded or both, and resume from one another's checkpoints."""

import dataclasses
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from resolvent.files import DiskFullError
from resolvent.model import LanguageModel, ModelConfig
from resolvent.studies.language import presets
from resolvent.tasks import Copy, Text
from resolvent.text import prepare
from resolvent.train import Record, RunConfig, TrainConfig, checkpoint, train
from resolvent.train.evaluations import AccuracyEvaluation, TextEvaluation
from resolvent.train.loop import make_optimizer
from resolvent.train.processes import SINGLE, Processes
from resolvent.train.state import SavedRun
from tests.train import jobs, patient

PROCESSES = 4
MODES = ("replicate", "shard", "hybrid")
ROUNDING = 1e-5  # of losses and norms in float32 that processes add up in other orders, a few steps of training on
MODEL = ModelConfig(vocab_size=20, layers=2, dim=16, heads=2, pattern=["exponential+cache", "first-order"],
                    rule=["softmax", "mamba2"], init_std=0.1)  # fmt: skip
TASK = Copy(vocab_size=20, length=8)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
# The store of torchrun outlives the processes it starts again; shared with them, it hands out addresses of the dead.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
SPOILT, HUGE = 5, 8  # steps with a loss that is not finite on one process, and with a gradient that is far too large
FAULTS = {str(SPOILT): ("nan", "last"), str(HUGE): (1e4, "all")}


def config(**changes: Any) -> RunConfig:
    """Shares of 2 and 3 sequences, in two parts, and a gradient that is always clipped."""
    settings = {"steps": 12, "warmup": 4, "batch": 11, "accumulate": 2, "clip": 0.1, "eval_every": 6, "eval_batches": 2,
                "checkpoint_every": 3, "log_every": 1, "spike": 20.0, "shard_group": 2}  # fmt: skip
    return RunConfig(MODEL, TASK, TrainConfig(**(settings | changes)))


def on_text(corpus: str, **changes: Any) -> RunConfig:
    text = Text(corpus, 32).prepared()
    model = ModelConfig(vocab_size=text.vocab_size, layers=2, dim=16, heads=2, pattern="quadratic")
    settings = TrainConfig(steps=4, warmup=2, batch=4, recompute=True, eval_every=3, eval_batches=2, log_every=1)
    return RunConfig(model, text, dataclasses.replace(settings, solved=None, **changes))


def metrics(folder: Path, name: str = "loss") -> list[float]:
    return [json.loads(line)[name] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat"], 1500)
    (folder / "words.txt").write_text(" ".join(words))
    return str(prepare([str(folder / "words.txt")], folder / "corpus", "bytes").folder)


@pytest.fixture(scope="module")
def runs(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: by one process here, and by several, one after another in one call of torchrun."""
    out, together = tmp_path_factory.mktemp("runs"), list[dict[str, Any]]()

    def add(name: str, run: RunConfig, **more: Any) -> None:
        together.append({"config": run.to_dict(), "folder": str(out / name), **more})

    jobs.run(config().to_dict(), str(out / "task"), faults=FAULTS)
    jobs.run(on_text(corpus).to_dict(), str(out / "text"))
    for mode in MODES:
        add(f"task-{mode}", config(parallel=mode), faults=FAULTS)
    add("text-replicate", on_text(corpus), many=2000)
    add("text-shard", on_text(corpus, parallel="shard"), many=2000)
    for mode, then in pairwise([*MODES, "replicate"]):  # begun by one, resumed by all
        jobs.run(config(parallel=mode).to_dict(), str(out / f"one-{mode}"), stop=7, faults=FAULTS)
        add(f"one-{mode}", config(parallel=then), faults=FAULTS)
        if mode != "replicate":
            add(f"half-{mode}", config(parallel=mode), stop=10, faults=FAULTS)
    add("small", config(batch=1))
    jobs.run(config(parallel="shard").to_dict(), str(out / "apart-0"), stop=7)
    add("apart-RANK", config(parallel="shard"))
    add("uneven", config(parallel="hybrid", shard_group=3))
    path = out / "jobs.json"
    path.write_text(json.dumps(together))
    done = subprocess.run([*TORCHRUN, f"--nproc-per-node={PROCESSES}", jobs.__file__, str(path)], capture_output=True,
                          text=True, env=ENVIRONMENT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_no_thread_of_the_group_outlives_it(runs: Path) -> None:
    """Threads of Gloo that are left free tensors while Python finalizes, and the process may abort."""
    for rank in range(PROCESSES):
        before, after = (runs / f"jobs.json.threads{rank}").read_text().split("---")
        assert "gloo" in before
        assert "gloo" not in after


def test_losses_are_those_of_one_process(runs: Path) -> None:
    """Also where all skip a step that one cannot use, and one whose gradient is far too large."""
    for name in (*(f"task-{mode}" for mode in MODES), "text-replicate", "text-shard"):
        one, several = runs / name.split("-")[0], runs / name
        assert metrics(several) == pytest.approx(metrics(one), abs=ROUNDING, rel=ROUNDING, nan_ok=True)
        norms = [metrics(folder, "gradient_norm") for folder in (several, one)]
        assert norms[0] == pytest.approx(norms[1], rel=ROUNDING, nan_ok=True)
        records = [Record.read(folder / "run.json") for folder in (several, one)]
        actual, expected = (record.evaluation for record in records)
        assert actual.tokens == expected.tokens
        if isinstance(actual, TextEvaluation):
            assert isinstance(expected, TextEvaluation)
            assert actual.loss == pytest.approx(expected.loss, abs=ROUNDING)
        else:
            assert isinstance(expected, AccuracyEvaluation)
            assert actual.accuracy == pytest.approx(expected.accuracy, abs=0.02)
            assert [step for step, loss in enumerate(metrics(several)) if not loss < 100] == [SPOILT, HUGE]
            assert [record.skipped_steps for record in records] == [2, 2]
        weights = [LanguageModel.load(folder / "model").state_dict() for folder in (one, several)]
        for key, weight in weights[0].items():
            torch.testing.assert_close(weights[1][key], weight, rtol=0, atol=1e-4)  # a step of Adam has only a sign
        assert not list(several.glob("checkpoint*"))


def test_replicas_send_each_gradient_once_a_step(runs: Path) -> None:
    """Of two micro-batches, the last one."""
    size = LanguageModel.shape_only(MODEL).parameter_count()
    for rank in range(PROCESSES):
        assert json.loads((runs / f"task-replicate.sent{rank}").read_text()) == 12 * [size]


def test_clipping_and_the_last_batch_were_tried(runs: Path, corpus: str) -> None:
    assert min(norm for norm in metrics(runs / "task", "gradient_norm") if norm == norm) > 0.1
    assert 0 < Text(corpus, 32).windows(4).windows % 4 < PROCESSES  # the last batch has fewer windows than processes


def test_runs_resume_on_more_or_fewer_processes_in_another_mode(runs: Path, tmp_path: Path) -> None:
    expected = pytest.approx(metrics(runs / "task"), abs=ROUNDING, rel=ROUNDING, nan_ok=True)
    for mode, then in pairwise([*MODES, "replicate"]):
        assert metrics(runs / f"one-{mode}") == expected
        if mode == "replicate":  # whose checkpoint is that of one process
            continue
        shutil.copytree(runs / f"half-{mode}", tmp_path / mode)
        assert len(metrics(tmp_path / mode)) == 10
        train(config(parallel=then), tmp_path / mode)
        assert metrics(tmp_path / mode) == expected
        assert Record.read(tmp_path / mode / "run.json").skipped_steps == 2


def test_a_sharded_checkpoint_is_in_parts_and_without_pickles(runs: Path) -> None:
    for mode in ("shard", "hybrid"):  # hybrid: one copy, which all write a share of
        folder = runs / f"half-{mode}" / "checkpoints"
        assert (folder / "latest").read_text() == "step_9\n"
        assert sorted(path.name for path in folder.iterdir()) == ["latest", "step_6", "step_9"]
        files = sorted((folder / "step_9").iterdir())
        assert [path.suffix for path in files] == [*PROCESSES * [".safetensors"], ".json"]


def test_wrong_settings_are_named(runs: Path) -> None:
    for rank in range(PROCESSES):
        message = (runs / f"small.error{rank}").read_text()
        assert message == f"expected at least one sequence for each of the {PROCESSES} processes, got batch=1."
        message = (runs / f"apart-RANK.error{rank}").read_text()  # each had a folder of its own, one with a checkpoint
        assert message.startswith("some processes have a checkpoint of step 6, others of step 0")
        message = (runs / f"uneven.error{rank}").read_text()
        assert message == f"expected train.shard_group to divide the {PROCESSES} processes, got groups of 3."
    assert len(list(runs.glob("*.error*"))) == 3 * PROCESSES
    with pytest.raises(ValueError, match=r"expected parallel replicate or shard or hybrid, got 'shared'. Did you mean"):
        config(parallel="shared")


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(
            DiskFullError, match=r"no space left to write .*step_3.*free some space, then rerun the same command"
        ):
            train(config(parallel="shard"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    train(config(parallel="shard"), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("check")] == []


def test_damaged_parts_are_named(tmp_path: Path) -> None:
    how = config(parallel="shard")
    jobs.run(how.to_dict(), str(tmp_path), stop=8)
    folder = tmp_path / "checkpoints"
    part, state = sorted((folder / "step_6").iterdir())
    data, latest = part.read_bytes(), folder / "latest"
    for damage, message in (
        (part.unlink, r"step_6 is incomplete.*Write the name of the checkpoint before it into 'lat"),  # torch: zeros
        (lambda: part.write_bytes(data[:-100]), r"a file in .*step_6 is damaged"),
        (lambda: (part.write_bytes(data), state.write_text("{")), r"state.json is damaged"),
        (lambda: latest.write_text("../step_6"), r"names '../step_6', and there is no such checkpoint"),
    ):
        damage()
        with pytest.raises(ValueError, match=message):
            train(how, tmp_path)
    latest.write_text("step_3")
    train(how, tmp_path)
    train(how, tmp_path / "complete")
    assert metrics(tmp_path) == metrics(tmp_path / "complete")
    assert not part.parent.exists()


def test_every_moment_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The folder is copied before each call of the system that changes it: what a kill there would leave."""
    out, copies, busy = tmp_path / "run", list[tuple[int, Path]](), False
    how, done = config(parallel="shard"), 0
    states = dict[int, dict[str, torch.Tensor]]()

    def watched(call: Any) -> Any:
        def first_copy(*arguments: Any, **named: Any) -> Any:
            nonlocal busy
            if not busy and out.exists():
                busy = True
                copies.append((done, shutil.copytree(out, tmp_path / f"copy{len(copies)}")))
                busy = False
            return call(*arguments, **named)

        return first_copy

    write = checkpoint.write

    def noted(
        folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, run: SavedRun, processes: Processes
    ) -> None:
        nonlocal done
        states[run.state.step] = {name: t.clone() for name, t in model.state_dict().items()}
        write(folder, model, optimizer, run, processes)
        done = run.state.step

    calls = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync")
    watching = patch.multiple(os, **{name: watched(getattr(os, name)) for name in calls})
    with watching, patch.object(checkpoint, "write", noted):
        whole = train(how, out)
    unfinished = [(after, copy) for after, copy in copies if not (copy / "run.json").exists()]
    assert len(copies) > len(unfinished) > 50
    for after, copy in unfinished:
        model = LanguageModel.seeded(MODEL, 0)
        found = checkpoint.read(copy, model, make_optimizer(model, how.train), SINGLE)
        step = 0 if found is None else found.state.step
        assert step in (after, after + 3), copy
        if step:
            assert all(torch.equal(t, states[step][name]) for name, t in model.state_dict().items()), copy
    for _, copy in unfinished[:: len(unfinished) // 4]:
        resumed = train(how, copy)
        for part in ("steps", "tokens", "skipped_steps", "evaluation", "curve"):
            assert getattr(resumed, part) == getattr(whole, part)
        assert metrics(copy) == metrics(out)
        assert [path.name for path in copy.iterdir() if path.name.startswith("check")] == []


@pytest.mark.parametrize(
    ("count", "mode"),
    [(2, "shard"), *(pytest.param(*each, marks=pytest.mark.slow)
                     for each in ((2, "replicate"), (4, "replicate"), (4, "shard"), (4, "hybrid")))],
)  # fmt: skip
def test_killed_processes_go_on(tmp_path: Path, count: int, mode: str) -> None:
    """The command: kill -9 for all processes while they save after every step; torchrun starts them again.

    They wait for it a few steps on, or a busy machine might see them finish first.
    """
    changes = ["train.steps=24", "train.batch=8", "train.warmup=4", "train.eval_every=12", "train.eval_batches=2",
               "train.checkpoint_every=1", "train.log_every=1", f"train.parallel={mode}", "model.dim=16",
               "train.shard_group=2"]  # fmt: skip
    words = ["train", "copy", "--pattern", "dense", "--preset", "smoke", *(w for c in changes for w in ("--set", c))]
    command = [*TORCHRUN, f"--nproc-per-node={count}", "--max-restarts=1", patient.__file__, str(tmp_path / "threads"),
               *words, "--out", str(tmp_path / "cut")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True)
    log = tmp_path / "cut" / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) > 5):
        time.sleep(0.01)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    assert not (tmp_path / "cut" / "run.json").exists()
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert len(workers) == count
    assert said.count("dense on copy: accuracy") == 1  # one process speaks
    assert errors.count("finished: ") == 1
    names = [path.read_text() for path in tmp_path.glob("threads*")]
    assert len(names) == count
    assert "gloo" not in "".join(names)  # the group ended with the run
    train(Record.read(tmp_path / "cut" / "run.json").config, tmp_path / "one")
    assert metrics(tmp_path / "cut") == pytest.approx(metrics(tmp_path / "one"), abs=ROUNDING)


def test_commands_of_the_page_fit(corpus: str) -> None:
    """`docs/distributed.md`: presets and settings exist, the script is one that bash can read."""
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    [script] = re.findall(r"^```sbatch\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    commands = re.findall(r"-m (resolvent train .*)", page.replace("\\\n", ""))
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command)
        options = list(pairwise(words))
        size = presets.preset_of(dict(options)["--preset"])
        found = presets.run_config(size, Text(corpus, size.context).prepared(), dict(options)["--pattern"], 0)
        found = found.changed([value for option, value in options if option == "--set"])
        assert found.train.accumulate > 1


def test_shares_of_a_batch() -> None:
    for count in (1, 2, 3, 8):
        for rows in range(count, 20):
            for parts in (1, 2, 5, 100):
                each = [Processes(rank, count, torch.device("cpu")).slices(rows, parts) for rank in range(count)]
                taken = [row for slices in each for part in slices for row in range(rows)[part]]
                assert taken == list(range(rows))
                assert {len(slices) for slices in each} == {min(parts, rows // count)}
                assert all(len(range(rows)[part]) >= 1 for slices in each for part in slices)
