"""`resolvent train` as a person meets it: signals, folders it names itself, more steps, other weights, costs."""

import dataclasses
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.cli.session import command_line
from resolvent.cli.settings import run_name
from resolvent.model import LanguageModel, ModelConfig
from resolvent.studies import table1
from resolvent.train import Record
from resolvent.train.plan import RunPlan, tokens_between, training_cost
from tests.small_runs import QUICK

CHANGES = [word for change in QUICK for word in ("--set", change)]
TRAIN = ["train", "copy", "--preset", "smoke", "--pattern", "dense"]
SMOKE = table1.run_config(table1.preset_of("smoke"), "copy", "dense", 0)

# The command, which stops for a signal in its first line and takes the same step whenever that comes.
SIGNALED = """
import os, signal, sys
from resolvent.cli.display import RunDisplay
from resolvent.__main__ import main
number, at, times = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
show = RunDisplay.step
def show_and_signal(display, p):
    show(display, p)
    if p.step == at:
        for _ in range(times):
            os.kill(os.getpid(), number)
RunDisplay.step = show_and_signal
sys.argv = ["resolvent", *sys.argv[4:]]
main()
"""


def started(folder: Path, number: int, at: int, times: int = 1) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", SIGNALED, str(number), str(at), str(times), *TRAIN, *CHANGES]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


def test_signals_leave_a_checkpoint_and_the_command_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, at, code in ((signal.SIGINT, 4, 130), (signal.SIGTERM, 8, 143)):
        done = started(tmp_path, number, at)
        assert done.returncode == code, done.stderr
        assert f"{number.name}: stopping after this step, with a checkpoint; once more to stop at once" in done.stderr
        assert f"stopped after step {at} of 12; its checkpoint is in runs/copy-smoke-dense-seed0." in done.stderr
        assert "Traceback" not in done.stderr
    command = done.stderr.splitlines()[-1].split()
    assert command[:2] == ["resolvent", "train"]
    monkeypatch.chdir(tmp_path)
    finished = call(*command[1:])
    assert finished.exit_code == 0, finished.output
    assert "resuming after step 8 of 12" in finished.stderr
    complete = call(*TRAIN, *CHANGES, "--out", "complete")
    assert complete.stdout.split(" in ")[0] == finished.stdout.split(" in ")[0]
    names = [path.name for run in ("runs/copy-smoke-dense-seed0", "complete") for path in Path(run).glob("model/*.s*")]
    assert names[0] == names[1]  # which have the digest of the weights in them


def test_the_second_signal_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = started(tmp_path, signal.SIGINT, 5, times=2)
    assert done.returncode == 130, done.stderr
    assert "stopped at once; to resume from the last checkpoint:\n  resolvent train copy" in done.stderr
    assert not (tmp_path / "runs" / "copy-smoke-dense-seed0" / "run.json").exists()
    monkeypatch.chdir(tmp_path)
    assert "resuming after step 3 of 12" in call(*TRAIN, *CHANGES).stderr


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], catch_exceptions=False)


def test_folders_are_named_and_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = [*TRAIN, *CHANGES, "--set", "train.steps=3", "--set", "train.eval_every=3"]
    assert "run: runs/copy-smoke-dense-seed0\n" in call(*short).stderr
    other = call(*short, "--set", "train.batch=3")
    assert (
        "runs/copy-smoke-dense-seed0 holds another run (train.batch was 4, is now 3): this one is runs/copy"
        in other.stderr
    )
    assert call(*short).stdout == call(*short).stdout  # the first is read
    longer = call(*short, "--set", "train.steps=5")
    assert re.search(
        r"extended: from here on the learning rate follows the schedule of 5 steps, [\d.e-]+ now", longer.stderr
    )
    tuned = call("train", "copy", "--preset", "smoke", "--from", "runs/copy-smoke-dense-seed0", *CHANGES[:-2],
                 "--set", "train.steps=2")  # fmt: skip
    assert "run: runs/copy-smoke-dense-seed0-from-copy-smoke-dense-seed0\n" in tuned.stderr
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "copy-smoke-dense-seed0", "copy-smoke-dense-seed0-2", "copy-smoke-dense-seed0-from-copy-smoke-dense-seed0",
    ]  # fmt: skip
    record = Record.read(Path("runs/copy-smoke-dense-seed0/run.json"))
    assert (record.steps, record.extended_at) == (5, (3,))
    assert Record.read(Path("runs/copy-smoke-dense-seed0-from-copy-smoke-dense-seed0/run.json")).config.model.dim == 16
    layers = dataclasses.replace(
        SMOKE, model=ModelConfig(vocab_size=64, layers=2, pattern=["local:8/exponential", "dense"])
    )
    assert run_name(layers, "smoke") == "copy-smoke-local_8_exponential_dense-seed0"
    many = dataclasses.replace(SMOKE, model=ModelConfig(vocab_size=64, layers=9, pattern=["quadratic+cache"] * 9))
    assert len(run_name(many, "smoke")) < 100


def test_a_solved_run_has_nothing_to_extend(tmp_path: Path) -> None:
    words = [*TRAIN, *CHANGES, "--set", "train.solved=0.0", "--out", str(tmp_path)]
    assert f"finished: {tmp_path}" in call(*words).stderr
    assert Record.read(tmp_path / "run.json").solved_at is not None
    longer = call(*words, "--set", "train.steps=99")
    assert longer.stderr == f"{tmp_path} was finished before: nothing was trained\n"


def test_commands_that_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name stands only where a shell finds by it what was started: an environment may not be active."""
    for name in ("resolvent", "python"):
        (tmp_path / name).touch(mode=0o755)
    script, python, folder = str(tmp_path / "resolvent"), str(tmp_path / "python"), Path("runs/a b")
    monkeypatch.setattr(sys, "executable", python)
    for path, names in ((tmp_path, ("resolvent", "python")), (Path("/nothing"), (script, python))):
        monkeypatch.setenv("PATH", str(path))
        assert command_line([script, "train", "copy"], folder) == f"{names[0]} train copy --out 'runs/a b'"
        started = ["/x/resolvent/__main__.py", "train", "copy", "--out=o"]
        assert command_line(started, folder) == f"{names[1]} -m resolvent train copy --out=o"
    relative = "./resolvent"  # of another environment than the one that is active
    assert command_line([relative, "train", "copy"], folder).startswith(f"{relative} train ")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert command_line([script, "train", "copy"], folder) == "torchrun … -m resolvent train copy --out 'runs/a b'"


def test_what_needs_too_much_memory_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("resolvent.train.plan.available_bytes", lambda _: 1e10)
    paper = ["train", "copy", "--preset", "paper", "--set"]
    error = resolvent_error(*paper, "model.layers=40", "--set", "model.dim=8192")
    assert re.search(r"expected a run that fits into memory, got one of [\d,.]+ GB where 10.0 GB are free: ", error)
    assert error.endswith("--yes starts it anyway.")
    assert not Path("runs").exists()
    fits = resolvent_error(*paper, "model.layers=20", "--set", "train.steps=2")
    assert re.search(r"are free: --set train.accumulate=\d+ would fit, and compute the same but for rounding", fits)


def resolvent_error(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code != 0
    return str(done.exception)


def test_the_plan_counts_what_the_run_does(tmp_path: Path) -> None:
    """Tokens, also of a curriculum, and parameters: those of the record."""
    config = SMOKE.changed([*QUICK, "train.curriculum=0.75", "train.solved=null"])
    plan = RunPlan.of(config)
    assert plan.cost.parameters == LanguageModel(config.model).parameter_count()
    assert tokens_between(config, 0, 12) == pytest.approx(4 * 33 * 3 * (1 / 8 + 1 / 4 + 1 / 2 + 1))
    changes = [*QUICK, "task.least=16"]  # as the longest
    call(*TRAIN, *(word for change in changes for word in ("--set", change)), "--out", str(tmp_path))
    assert RunPlan.of(SMOKE.changed(changes)).tokens == Record.read(tmp_path / "run.json").tokens
    assert RunPlan.of(SMOKE.changed(["train.recompute=true"])).flops == pytest.approx(4 / 3 * RunPlan.of(SMOKE).flops)
    complete = RunPlan.of(SMOKE, 8).cost.state_bytes  # which processes that share them divide
    for shared, shards in (([], 1), (["train.parallel=shard"], 8),
                           (["train.parallel=hybrid", "train.shard_group=4"], 4)):  # fmt: skip
        assert RunPlan.of(SMOKE.changed(shared), 8).cost.state_bytes == complete // shards


SIZES = [("attention", False, 256), ("dense", False, 256), ("attention", True, 256), ("attention", True, 20_000)]


def test_memory_is_about_what_is_measured() -> None:
    """Of what a step holds beyond weights and moments, large enough that nothing else matters; in a process alone."""
    code = f"""
from functools import partial
from resolvent.bench.measure import frugal_allocator, peak_bytes
from resolvent.bench.training import loss_of, random_tokens, training
from resolvent.model import LanguageModel, ModelConfig
with frugal_allocator():
    for pattern, recompute, vocabulary in {SIZES}:
        model = LanguageModel.seeded(ModelConfig(vocab_size=vocabulary, layers=4, dim=64, heads=2, pattern=pattern), 0)
        model.recompute = recompute
        step = partial(training(model, partial(loss_of, model)), random_tokens(vocabulary, 8, 256))
        step()
        print(peak_bytes(step))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peaks = done.stdout.split()
    if "None" in peaks:
        pytest.skip("this system does not say how much memory a process had at its peak")
    for (pattern, recompute, vocabulary), peak in zip(SIZES, peaks, strict=True):
        config = ModelConfig(vocab_size=vocabulary, layers=4, dim=64, heads=2, pattern=pattern)
        cost = training_cost(config, LanguageModel.shape_only(config).profile(256), 8, recompute=recompute)
        assert cost.activation_bytes + 4 * cost.parameters == pytest.approx(int(peak), rel=0.25), (pattern, recompute)


def test_signals_that_were_ignored_stay_ignored(tmp_path: Path) -> None:
    """As under nohup, or in the background of a script."""
    words = [sys.executable, "-c", SIGNALED, str(int(signal.SIGHUP)), "4", "1", *TRAIN, *CHANGES]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path,
                          preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SIGHUP" not in done.stderr
