"""Runs on disk: listed, filtered, compared, and removed only when nobody works on them."""

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.files import is_locked, locked
from resolvent.report.runs import curves_figure
from resolvent.train import Progress, train
from resolvent.train.runs import RunFilter, find_runs, read_run
from tests.train.test_train import KilledError, config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "runs"
    train(config(), folder / "one")
    train(
        dataclasses.replace(config(seed=1), model=dataclasses.replace(config().model, pattern="dense")),
        folder / "deep" / "two",
    )

    def kill(p: Progress) -> None:
        if p.step == 12:
            raise KilledError

    with pytest.raises(KilledError):
        train(config(steps=30), folder / "cut", kill)
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A copy that is an hour old."""
    folder = Path(shutil.copytree(finished, tmp_path / "runs"))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)
    return folder


def call(*words: str, ok: bool = True, **options: Any) -> Result:
    done = CliRunner().invoke(app, ["runs", *words], **options)
    assert (done.exit_code == 0) == ok, done.output
    return done


def test_they_are_found_at_any_depth_with_their_state(runs: Path) -> None:
    cut, two, one = find_runs(runs)
    assert [(run.name, run.state, run.step) for run in (cut, two, one)] == [
        ("cut", "interrupted", 12), ("deep/two", "finished", 24), ("one", "finished", 24)]  # fmt: skip
    assert one.value == read_run(runs / "one").record.evaluation.value
    assert cut.value == [line.value for line in cut.log if line.value is not None][-1]
    with locked(runs / "cut"):
        assert is_locked(runs / "cut")
        assert read_run(runs / "cut").state == "running"
    assert not is_locked(runs / "cut")
    (runs / "cut" / "config.toml").unlink()
    assert read_run(runs / "cut").config == cut.config  # from its checkpoint
    (runs / "cut" / "checkpoint.safetensors").unlink()
    (runs / "cut" / "config.json").write_text(json.dumps(cut.config.to_dict()))
    assert read_run(runs / "cut").config == cut.config  # a study's cell


def test_filters(runs: Path) -> None:
    def names(**given: Any) -> list[str]:
        return [run.name for run in RunFilter(**given).apply(find_runs(runs))]

    assert names(task="copy") == ["cut", "deep/two", "one"]
    assert names(task="text") == []
    assert names(pattern="dense") == ["deep/two"]
    assert names(pattern="exp*") == ["cut", "one"]
    assert names(state="interrupted") == ["cut"]
    assert names(settings={"train.seed": "1"}) == ["deep/two"]
    assert names(settings={"train.learning_rate": "2e-3", "train.spike": "none"}) == ["cut", "deep/two", "one"]
    with pytest.raises(ValueError, match=r"no run has the setting 'train.sed'.* Did you mean 'train.seed'\?"):
        names(settings={"train.sed": "1"})
    with pytest.raises(ValueError, match=r"unknown state 'finish'.* Did you mean 'finished'\?"):
        names(state="finish")


def test_the_list(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    text = call().stdout  # of the folder runs
    assert text == call("list", "runs").stdout == call(str(runs)).stdout
    assert all(part in text for part in ("12/30", "60 min", "interrupted"))
    listed = json.loads(call("--where", "train.seed=1", "--json").stdout)
    assert [(run["name"], run["settings"]["train.seed"]) for run in listed] == [("deep/two", 1)]
    assert "no such runs" in call("--task", "text").stderr
    for words in (("nowhere",), ("list", "nowhere")):
        assert "there is no folder nowhere" in str(call(*words, ok=False).exception)
    unknown = "no such command (list, compare, inspect). Did you mean 'list'?"
    assert unknown in str(call("lst", ok=False).exception)
    assert "expected a setting as KEY=VALUE" in str(call("--where", "seed", ok=False).exception)
    (runs / "one" / "run.json").write_text("{")
    done = call()
    assert "one cannot be read: " in done.stderr  # and the others are listed
    assert "deep/two" in done.stdout


def test_compare(runs: Path, tmp_path: Path) -> None:
    folders = [str(runs / "one"), str(runs / "deep" / "two"), str(runs / "cut")]
    done = call("compare", *folders, "--plot", str(tmp_path / "curves.png"))
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0].startswith(("model.", "task.", "train."))] == [
        "model.pattern", "train.steps", "train.seed"]  # fmt: skip
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    content = json.loads(call("compare", *folders, "--json").stdout)
    assert content["different"]["train.seed"] == [0, 1, 0]
    compared = [read_run(Path(folder)) for folder in folders]
    last = [line.get_xydata()[-1].tolist() for line in curves_figure(compared).axes[0].lines]
    assert last == [[run.step, pytest.approx(run.loss)] for run in compared]
    assert "at least two runs to compare, got 1" in str(call("compare", folders[0], ok=False).exception)
    assert "holds no run: expected run.json" in str(call("compare", folders[0], str(tmp_path), ok=False).exception)
    assert "there is no folder nope. " in str(call("compare", folders[0], "nope", ok=False).exception)
