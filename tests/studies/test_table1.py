"""The study: cells that are never run twice, numbers that do not depend on jobs, reports from records alone."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from resolvent.report import claims, page, results
from resolvent.studies import grid
from resolvent.studies.table1 import PRESETS, cells
from resolvent.train import record

QUICK = ["train.steps=12", "train.warmup=2", "train.batch=4", "train.eval_every=6", "train.eval_batches=1",
         "train.checkpoint_every=3", "train.log_every=1", "model.dim=16"]  # fmt: skip
FEW = ["attention", "first-order"]


def essence(done: dict[str, Any]) -> dict[str, Any]:
    return {key: done[key] for key in ("config", "evaluation", "curve")}


def quick(out: Path, **options: Any) -> list[grid.Cell]:
    settings = {"structures": FEW, "tasks": ["copy", "recall"], "changes": QUICK, "seeds": 1} | options
    return cells("small", out, **settings)


def test_numbers_do_not_depend_on_jobs(tmp_path: Path) -> None:
    one = grid.run(quick(tmp_path / "1", tasks=["copy"]), 1)
    two = grid.run(quick(tmp_path / "2", tasks=["copy"]), 2)
    assert [essence(record) for record in one] == [essence(record) for record in two]
    assert len(one) == 2


def test_finished_cells_are_read(tmp_path: Path) -> None:
    first = grid.run(quick(tmp_path, tasks=["copy"]), 2)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = grid.run(quick(tmp_path, tasks=["copy"]), 2)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps
    with pytest.raises(ValueError, match="was run with other settings"):
        grid.run(quick(tmp_path, changes=[*QUICK, "train.steps=13"]), 2)


def study(out: Path, *more: str) -> list[str]:
    changes = [word for change in QUICK for word in ("--set", change)]
    chosen = [word for name in FEW for word in ("--structures", name)]
    return [sys.executable, "-m", "resolvent", "study", "table1", "--preset", "small", "--tasks", "copy", *chosen,
            "--out", str(out), "--jobs", "2", "--seeds", "1", *changes, *more]  # fmt: skip


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    whole = grid.run(quick(tmp_path / "whole", tasks=["copy"], changes=[*QUICK, "train.steps=40"]), 2)
    command = study(tmp_path / "cut", "--set", "train.steps=40")
    for pause, kill in ((4.0, os.killpg), (6.0, os.kill)):  # with its cells, or alone: then they end by themselves
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(pause)
        kill(process.pid, signal.SIGKILL)
        process.wait()
    end = time.monotonic() + 20
    while subprocess.run(["pgrep", "-f", str(tmp_path / "cut")], capture_output=True).stdout:
        assert time.monotonic() < end, "expected cells to end with their study"
        time.sleep(0.1)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cut = [record.read(path) for path in sorted((tmp_path / "cut").rglob("run.json"))]
    assert [essence(r) for r in cut] == [
        essence(r) for r in sorted(whole, key=lambda r: r["config"]["model"]["pattern"])
    ]


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    done = subprocess.run(study(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "first-order" in done.stdout
    assert "accuracy in per cent" in done.stdout
    assert "report.html" in done.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http://" not in page
    assert "https://" not in page
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert [row["structure"] for row in rows] == FEW
    assert (tmp_path / "table1.md").read_text().startswith("# Table 1, small")
    kept = results.read_records(tmp_path / "table1-small.jsonl")
    assert [r["config"]["model"]["pattern"] for r in kept] == FEW
    again = subprocess.run(study(tmp_path, "--json"), capture_output=True, text=True)
    content = json.loads(again.stdout)
    assert {r["config"]["model"]["pattern"] for r in content["records"]} == set(FEW)


def test_each_cell_at_work_has_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, most = [], []

    class Process:
        """Takes three looks to end."""

        returncode = 0

        def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
            self.looks, self.env = 0, env
            given.append(self)

        def poll(self) -> int | None:
            self.looks += 1
            most.append(sorted(p.env["CUDA_VISIBLE_DEVICES"] for p in given if p.looks <= 3))
            return 0 if self.looks > 3 else None

        def terminate(self) -> None:
            raise AssertionError

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(grid, "_PAUSE", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert grid.run(quick(tmp_path, tasks=["copy", "recall"], structures=["attention", "dense", "order:8"]), 8) == []
    assert len(given) == 6
    assert all(len(set(at_once)) == len(at_once) <= 2 for at_once in most)
    assert {name for at_once in most for name in at_once} == {"3", "5"}


def test_a_failing_cell_leaves_the_others(tmp_path: Path) -> None:
    both = quick(tmp_path, tasks=["copy"])
    (both[0].folder).mkdir(parents=True)
    (both[0].folder / "checkpoint.safetensors").write_text("nonsense")
    with pytest.raises(grid.CellError, match=r"copy · attention · seed 10 failed: .*is damaged.*log.txt"):
        grid.run(both, 2)
    assert both[1].done() is not None
    (both[0].folder / "checkpoint.safetensors").unlink()
    assert len(grid.run(both, 2)) == 2
    (both[0].folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged"):
        grid.run(both, 2)


def test_a_full_disk_says_so_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: records of steps still fit, a checkpoint does not."""
    both = quick(tmp_path, tasks=["copy"])
    assert grid.run(both[1:], 1)[0]["steps"] == 12
    command = f"ulimit -f 16; exec {shlex.join(study(tmp_path))}"  # blocks of 1,024 bytes
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2
    assert "copy · attention · seed 10 failed: " in done.stderr
    assert "no room to write" in done.stderr
    assert "Finished cells are kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert both[0].done() is None
    assert both[1].done() is not None
    assert not (both[0].folder / "checkpoint.safetensors").exists()
    assert len(grid.run(both, 2)) == 2


@pytest.mark.parametrize(("options", "message"), [
    ({"tasks": ["copi"]}, "unknown task 'copi'.*Did you mean 'copy'"),
    ({"structures": ["denes"]}, "Did you mean 'dense'"),
    ({"changes": ["task.length=2"], "tasks": ["copy"]}, "expected 1 ≤ least ≤ length"),
    ({"changes": ["task.vocab_size=16", "model.vocab_size=16"], "tasks": ["recall"]}, "at most 7 pairs"),
])  # fmt: skip
def test_bad_input(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(tmp_path, **options)
    with pytest.raises(ValueError, match="unknown preset 'smal'"):
        cells("smal", tmp_path)


def test_paper_preset_is_the_papers() -> None:
    paper = PRESETS["paper"]
    assert (paper.train.steps, paper.train.warmup, paper.train.learning_rate, paper.train.batch) == (
        20_000,
        2000,
        3e-3,
        1024,
    )
    assert (paper.model.layers, paper.model.dim, paper.model.inner_dim, paper.model.heads) == (2, 256, 1024, 4)
    assert {name: settings.get("length") for name, settings in paper.tasks.items()} == {
        "copy": 128, "recall": 256, "multihop": 256}  # fmt: skip
    assert len(cells("paper", Path("x"))) == 27


# Claims


@pytest.mark.parametrize(("one", "other", "grade"), [
    ([0.9, 0.92], [0.8, 0.85], "supported"),
    ([0.8, 0.92], [0.85, 0.7], "open"),
    ([0.5, 0.6], [0.8, 0.85], "contradicted"),
    ([0.9], [0.86], "open"),
    ([0.9], [0.84], "supported"),
    ([0.9], [], "not run"),
])  # fmt: skip
def test_better(one: list[float], other: list[float], grade: str) -> None:
    claim = claims.Claim("copy", "dense", "local:8")
    assert claim.grade({("copy", "dense"): one, ("copy", "local:8"): other}) == grade


@pytest.mark.parametrize(("one", "other", "grade"), [
    ([0.99, 1.0], [0.985, 0.99], "supported"),
    ([0.99, 1.0], [0.95, 0.99], "open"),
    ([0.99, 1.0], [0.5, 0.6], "contradicted"),
])  # fmt: skip
def test_alike(one: list[float], other: list[float], grade: str) -> None:
    claim = claims.Claim("copy", "dense", "attention", alike=True)
    assert claim.grade({("copy", "dense"): one, ("copy", "attention"): other}) == grade


def test_the_papers_own_numbers_support_its_claims() -> None:
    """All but the ones its text makes against its own table."""
    scores = {key: [value, value] for key, value in claims.PAPER.items()}
    grades = {str(claim): claim.grade(scores) for claim in claims.CLAIMS}
    assert grades["multihop: dense > attention"] == "supported"
    assert grades["copy: exponential+cache > order:8"] == "open"
    assert grades["multihop: attention > order:8"] == "open"
    assert "contradicted" not in grades.values()
    assert len(page.COLOURS) >= 9
