"""Trackers: each gets the same numbers, none is imported unless asked for, and a missing one names its extra."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resolvent.train import train
from resolvent.train.trackers import TRACKERS, Tracking
from tests.train.test_train import config, losses

SHOWN = (10, 20, 24)  # steps of a run of 24


def test_tensorboard_reads_what_a_run_reports(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking(["tensorboard"], tmp_path, config()) as tracking:
        train(config(), tmp_path, tracking.write)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    logged = {step: loss for step, loss, _ in losses(tmp_path)}
    assert {e.step: e.value for e in read.Scalars("loss")} == pytest.approx({s: logged[s] for s in SHOWN})
    assert [e.step for e in read.Scalars("accuracy")] == [8, 16, 24]


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_the_others_get_the_same_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that take what these take: the real ones need packages that tests should not."""
    logged: list[tuple[int, dict[str, float]]] = []
    given: dict[str, Any] = {}
    run = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: given.update(finished=True)
    )
    library = SimpleNamespace(init=lambda **options: given.update(options) or run, __spec__=object(), **vars(run))
    monkeypatch.setitem(sys.modules, name, library)
    with Tracking([name, name], tmp_path, config()) as tracking:
        assert given == {}  # nothing begins before there are numbers
        train(config(), tmp_path, tracking.write)
    assert given["config"]["train.steps"] == 24
    assert given["name"] == tmp_path.name
    assert given["finished"]
    losses_of = {step: loss for step, loss, _ in losses(tmp_path)}
    assert {step: values["loss"] for step, values in logged if "loss" in values} == {s: losses_of[s] for s in SHOWN}
    assert [step for step, values in logged if "accuracy" in values] == [8, 16, 24]


def test_what_is_missing_is_said_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (_, extra) in TRACKERS.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"--track {name} needs a package: pip install 'resolvent\[{extra}\]'"):
            Tracking([name], tmp_path, config())
    with pytest.raises(ValueError, match=r"unknown tracker 'wandbb': expected .*Did you mean 'wandb'\?"):
        Tracking(["wandbb"], tmp_path, config())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="expected --out"):
        Tracking(["tensorboard"], None, config())


def test_no_tracker_is_imported_unless_asked_for() -> None:
    code = f"import sys, resolvent.cli, resolvent.train.trackers; assert not {set(TRACKERS)} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
