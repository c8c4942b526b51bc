"""The study: cells that are never run twice, numbers that do not depend on jobs, reports from records alone."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import resolvent as rv
from resolvent.cli import app
from resolvent.patterns import FAMILIES
from resolvent.studies import grid
from resolvent.studies.table1 import cells, claims, table
from resolvent.train import train
from resolvent.train.record import Record, read_records
from tests.commands import command
from tests.small_runs import QUICK

RECORDS = Path(__file__).parents[2] / "docs" / "records"
FEW = ["attention", "first-order"]


def essence(done: Record) -> tuple[object, ...]:
    return done.config, done.evaluation, done.curve


def quick(out: Path, **options: Any) -> list[grid.Cell]:
    settings = {"structures": FEW, "tasks": ["copy"], "changes": QUICK, "seeds": 1} | options
    return cells("small", out, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A study whose cells ran as processes, two at once, and its records."""
    out = tmp_path_factory.mktemp("finished")
    return out, grid.run(quick(out), 2)


def test_numbers_do_not_depend_on_the_process(finished: tuple[Path, list[Record]], tmp_path: Path) -> None:
    here = [train(cell.config, cell.folder) for cell in quick(tmp_path)]
    assert [essence(each) for each in here] == [essence(each) for each in finished[1]]


def test_finished_cells_are_read(finished: tuple[Path, list[Record]]) -> None:
    out, first = finished
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert grid.run(quick(out), 2) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    with pytest.raises(ValueError, match="was run with other settings"):
        grid.run(quick(out, changes=[*QUICK, "train.steps=13"]), 2)


def words(out: Path, *more: str, structures: Sequence[str] = FEW) -> list[str]:
    changes = [word for change in QUICK for word in ("--set", change)]
    chosen = [word for name in structures for word in ("--structures", name)]
    return ["study", "table1", "--preset", "small", "--tasks", "copy", *chosen, "--out", str(out), "--jobs", "2",
            "--seeds", "1", *changes, *more]  # fmt: skip


def checkpoints(out: Path) -> list[tuple[Path, int]]:
    """Those of the cells, and when they were written."""
    found = []
    for path in sorted(out.rglob("checkpoint.safetensors")):
        with suppress(FileNotFoundError):  # a cell has ended meanwhile
            found.append((path, path.stat().st_mtime_ns))
    return found


@pytest.mark.usefixtures("cells_run_here")
def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    """The study with its cells, or alone: then they end by themselves. What is left is resumed here."""
    one = {"structures": FEW[:1], "changes": [*QUICK, "train.steps=40"]}
    whole = [train(cell.config, cell.folder) for cell in quick(tmp_path / "whole", **one)]
    study = [sys.executable, "-m", "resolvent", *words(tmp_path / "cut", "--set", "train.steps=40", structures=FEW[:1])]
    for kill in (os.killpg, os.kill):
        before = checkpoints(tmp_path / "cut")
        process = subprocess.Popen(study, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while checkpoints(tmp_path / "cut") == before:
            assert process.poll() is None, "expected checkpoints before the study ends"
            time.sleep(0.01)
        kill(process.pid, signal.SIGKILL)
        process.wait()
    end = time.monotonic() + 300  # only for cells that never would
    while subprocess.run(["pgrep", "-f", str(tmp_path / "cut")], capture_output=True).stdout:
        assert time.monotonic() < end, "expected cells to end with their study"
        time.sleep(0.1)
    cut = grid.run(quick(tmp_path / "cut", **one), 1)
    assert [essence(each) for each in cut] == [essence(each) for each in whole]


def test_the_command_prints_and_writes(finished: tuple[Path, list[Record]]) -> None:
    """Of cells that are finished: that it runs what is missing is seen above."""
    out, records = finished
    done = command(*words(out))
    assert done.returncode == 0, done.stderr
    assert "first-order" in done.stdout
    assert "accuracy in %" in done.stdout
    assert "report.html" in done.stderr
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search("https?://", page)
    assert (out / "table1.md").read_text().startswith("# Table 1, small")
    assert read_records(out / "table1-small.jsonl") == records
    content = json.loads(CliRunner().invoke(app, words(out, "--json")).stdout)
    assert [Record.from_dict(each) for each in content["records"]] == records


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


@pytest.mark.usefixtures("cells_run_here")
def test_a_failing_cell_leaves_the_others(tmp_path: Path) -> None:
    both = quick(tmp_path)
    (both[0].folder).mkdir(parents=True)
    (both[0].folder / "checkpoint.safetensors").write_text("nonsense")
    with pytest.raises(grid.CellError, match=r"copy · attention · seed 20 failed: .*is damaged.*log.txt.*are kept"):
        grid.run(both, 2)
    assert both[1].record() is not None
    (both[0].folder / "checkpoint.safetensors").unlink()
    assert len(grid.run(both, 2)) == 2
    (both[0].folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged"):
        grid.run(both, 2)


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


# The paper's table of hyperparameters, and what its appendix says in words, typed from it.
PAPERS_SETTINGS = {
    "train.steps": 20_000, "train.warmup": 2000, "train.learning_rate": 3e-3, "train.batch": 1024,
    "train.weight_decay": 0.1, "train.beta_1": 0.9, "train.beta_2": 0.98, "train.clip": 1.0,
    "train.precision": "float16", "train.curriculum": 0.75, "train.solved": None, "train.spike": None,
    "model.vocab_size": 8192, "model.layers": 2, "model.dim": 256, "model.heads": 256 // 64, "task.vocab_size": 8192,
}  # fmt: skip
PAPERS_TASKS = {
    "copy": {"length": 128},
    "recall": {"pairs": 64, "length": 256, "placement": "scattered", "repeats": False},
    "multihop": {"pairs": 64, "length": 256, "placement": "scattered", "repeats": False, "chance": 0.5,
                 "chains": "literal"},
}  # fmt: skip


def test_paper_preset_is_the_papers() -> None:
    runs = cells("paper", Path("x"))
    assert len(runs) == 27
    for cell in runs:
        plain = cell.config.to_dict()
        for name, value in PAPERS_SETTINGS.items():
            section, _, key = name.partition(".")
            assert plain[section][key] == value, name
        assert cell.config.model.inner_dim == 1024
        assert {key: plain["task"][key] for key in PAPERS_TASKS[cell.task]} == PAPERS_TASKS[cell.task]
        assert cell.config.model.pattern == cell.structure
        recurrent = cell.structure not in ("attention", "local:8")
        assert cell.config.model.rule == ("softmax:gate=mamba" if recurrent else "softmax")
        thirds = [cell.config.train.divisor(step) for step in (0, 4999, 5000, 9999, 10_000, 14_999, 15_000, 19_999)]
        assert thirds == [8, 8, 4, 4, 2, 2, 1, 1]


def test_the_papers_preset_takes_steps_on_a_cpu(tmp_path: Path) -> None:
    """Two steps in float16, with fewer sequences than the paper's."""
    [cell] = cells("paper", tmp_path, tasks=["copy"], structures=["quadratic+cache"],
                   changes=["train.steps=2", "train.batch=2", "train.eval_batches=1"])  # fmt: skip
    record = train(cell.config, cell.folder)
    assert (record.steps, record.config.train.precision) == (2, "float16")
    assert all(math.isfinite(point.loss) for point in record.curve)


# Claims


BETTER, ALIKE = (claims.Ranked("", "copy", "dense", other) for other in ("local:8", "attention"))
SOLVES = claims.Solves("", "copy", "dense")


@pytest.mark.parametrize(("claim", "one", "other", "grade"), [
    (BETTER, [0.9, 0.92], [0.8, 0.85], "supported"),
    (BETTER, [0.8, 0.92], [0.85, 0.7], "open"),
    (BETTER, [0.5, 0.6], [0.8, 0.85], "contradicted"),
    (BETTER, [0.9], [0.86], "open"),
    (BETTER, [0.9], [0.84], "supported"),
    (BETTER, [0.9], [], "not run"),
    (ALIKE, [0.99, 1.0], [0.985, 0.99], "supported"),
    (ALIKE, [0.99, 1.0], [0.95, 0.99], "open"),
    (ALIKE, [0.99, 1.0], [0.5, 0.6], "contradicted"),
    (SOLVES, [0.995, 0.999], [], "supported"),
    (SOLVES, [0.95, 0.999], [], "open"),
    (SOLVES, [0.8, 0.9], [], "contradicted"),
    (SOLVES, [], [], "not run"),
])  # fmt: skip
def test_grades(claim: claims.Ranked | claims.Solves, one: list[float], other: list[float], grade: str) -> None:
    scores = {("copy", "dense"): one, ("copy", "local:8"): other, ("copy", "attention"): other}
    assert claim.grade(scores) == grade


def test_the_papers_own_numbers_support_its_claims() -> None:
    """Every one, since what is alike there is claimed to be alike."""
    scores = {key: [value, value] for key, value in claims.PAPER.items()}
    assert {claim.grade(scores) for claim in claims.CLAIMS} == {"supported"}
    compared = [str(claim) for claim in claims.CLAIMS]
    assert len(set(compared)) == len(compared)
    for expected in ("recall: quadratic+cache > order:8", "recall: quadratic > exponential",
                     "multihop: dense > attention", "recall: first-order > local:8",
                     "multihop: exponential+cache > exponential", "multihop: attention = order:8"):  # fmt: skip
        assert expected in compared


def test_the_table_orders_every_structure() -> None:
    """Neighbours of each column, in the text or in the table's own claims, join all nine."""
    for task in ("copy", "recall", "multihop"):
        joined = {frozenset((c.one, c.other)) for c in claims.CLAIMS if isinstance(c, claims.Ranked) and c.task == task}
        column = sorted((name for of, name in claims.PAPER if of == task), key=lambda name: -claims.PAPER[task, name])
        assert all(frozenset(pair) in joined for pair in pairwise(column))


# The table


def test_congestion_is_that_of_the_copy() -> None:
    """Copying 24 symbols by 24 positions."""
    records = [r for r in read_records(RECORDS / "table1-small.jsonl") if r.config.task.name == "copy"]
    found = {r.structure: (r.congestion.lower, r.congestion.upper) for r in table.structure_results(records)}
    assert set(found) == set(rv.PAPER_STRUCTURES)
    for name, bounds in found.items():
        expected = rv.congestion(name, 24)
        assert bounds == (expected.lower, expected.upper), name


def test_by_hops_has_only_what_was_run() -> None:
    records = read_records(RECORDS / "table1-small.jsonl")
    assert table.by_hops(table.structure_results([r for r in records if r.config.task.name == "copy"])) is None
    some = [r for r in records if r.config.task.name == "copy" or "dense" in str(r.config.model.pattern)]
    by_hops = table.by_hops(table.structure_results(some))
    assert by_hops is not None
    assert [row[0] for row in by_hops.rows] == ["dense"]


TABLE = rv.explicit(lambda i: {i - 1, i // 2} if i else (), n=64)


def test_folders_of_structures_are_safe_short_and_their_own(tmp_path: Path) -> None:
    specs = [*rv.PAPER_STRUCTURES, *(family.sample for family in FAMILIES.values()), TABLE.spelling,
             f"{TABLE.spelling}/first-order", "attention/first-order", "local:8/exponential+cache", "stride:k**3+1",
             "stride:k*3+1", "stride:k+3+1", "stride:k//2+k+1", "stride:" + "+".join(["k"] * 30) + "+1",
             "bigbird:2,1,1,5", "binomial:4,lazy"]  # fmt: skip
    folders = [grid.folder_of(tmp_path, spec) for spec in dict.fromkeys(specs)]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder.parent == tmp_path
        assert re.fullmatch(r"[A-Za-z0-9.=@+,_-]{1,100}", folder.name), folder.name
    assert grid.folder_of(tmp_path, "attention/first-order").name == "attention__first-order"
    assert grid.folder_of(tmp_path, "local:8").name == "local_8"
    assert grid.folder_of(tmp_path, "dense/exponential") == grid.folder_of(tmp_path, "attention/exponential")


def test_cells_of_pairs_and_tables_have_short_names(tmp_path: Path) -> None:
    made = quick(tmp_path, structures=["dense/first-order", TABLE.spelling], tasks=["copy"])
    assert [cell.structure for cell in made] == ["attention/first-order", str(TABLE)]
    assert [cell.config.model.pattern for cell in made] == ["attention/first-order", TABLE.spelling]
    assert made[1].name == f"copy · {TABLE} · seed 20"
    assert made[1].config.model.pattern_label == str(TABLE)
