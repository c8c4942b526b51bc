"""The cells of a study on a cluster: the records of a local run, machines that die in the middle, no cell twice.

The clusters are on this machine. `make cluster` installs what they need, and runs these tests.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from resolvent.errors import SettingError
from resolvent.files import locked
from resolvent.studies import cell, grid
from resolvent.studies.engines import engine_of
from resolvent.studies.table1 import cells
from resolvent.train import metrics
from tests.studies.test_table1 import FEW, QUICK, essence

STEPS = 200  # a cell is at work for longer than a machine takes to die
CHANGES = [*QUICK, f"train.steps={STEPS}", "train.eval_every=100", "train.checkpoint_every=10", "train.log_every=1"]


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make cluster installs it")


def study(out: Path) -> list[grid.Cell]:
    return cells("small", out, structures=FEW, tasks=["copy"], changes=CHANGES, seeds=1)


def steps(each: grid.Cell) -> list[int]:
    return [line.step for line in metrics.read_metrics(each.folder / metrics.FILE)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return [essence(each) for each in grid.run(study(tmp_path_factory.mktemp("local")), 2)]


def start_command(engine: str, out: Path) -> subprocess.Popen[str]:
    chosen = [word for name in FEW for word in ("--structures", name)]
    changes = [word for change in CHANGES for word in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, "-m", "resolvent", "study", "table1", "--on", engine, "--preset", "small", "--tasks", "copy",
         *chosen, "--out", str(out), "--seeds", "1", *changes],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_checkpoints(out: Path, process: subprocess.Popen[str]) -> None:
    """Of all cells: each is in the middle."""
    while len(list(out.rglob("checkpoint.safetensors"))) < len(FEW):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def processes_of(folder: Path) -> list[int]:
    """At work on a cell."""
    pattern = f"resolvent.studies.cell {folder}"
    return [int(pid) for pid in subprocess.run(["pgrep", "-f", pattern], capture_output=True).stdout.split()]


def wait_for_a_successor(before: dict[Path, list[int]], process: subprocess.Popen[str]) -> None:
    """Of the processes that were at work, one is gone, and another has taken up its cell."""
    while True:
        now = {folder: processes_of(folder) for folder in before}
        if any(now[folder] and not set(now[folder]) & set(before[folder]) for folder in before):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def check(out: Path, process: subprocess.Popen[str], local: list[Any]) -> None:
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "first-order" in said
    finished = study(out)
    assert [essence(done) for each in finished if (done := each.record())] == local
    for each in finished:
        assert steps(each) == list(range(1, STEPS + 1))
        assert not (each.folder / "slurm").exists()


@needs("ray")
def test_a_study_on_ray_outlives_a_node(tmp_path: Path, local: list[Any]) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        process = start_command(f"ray:address={cluster.address}", tmp_path)
        wait_for_checkpoints(tmp_path, process)
        before = {each.folder: processes_of(each.folder) for each in study(tmp_path)}
        assert [len(found) for found in before.values()] == [1, 1]  # one on each node
        cluster.remove_node(node, allow_graceful=False)
        assert not any(each.record() for each in study(tmp_path))
        wait_for_a_successor(before, process)
        check(tmp_path, process, local)
    finally:
        cluster.shutdown()


@needs("submitit")
def test_a_study_on_submitit_outlives_a_job(tmp_path: Path, local: list[Any]) -> None:
    process = start_command("slurm:cluster=local", tmp_path)
    wait_for_checkpoints(tmp_path, process)
    first = study(tmp_path)[0]
    [worker] = processes_of(first.folder)
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)  # the job; the cell ends with it
    assert first.record() is None
    wait_for_a_successor({first.folder: [worker]}, process)
    check(tmp_path, process, local)


@needs("submitit")
def test_options_of_jobs_are_checked() -> None:
    with pytest.raises(SettingError, match=r"options of slurm: Unknown argument 'partitoin'.*partition"):
        engine_of("slurm:cluster=local,partitoin=gpu")
    with pytest.raises(SettingError, match="expected cluster slurm or local, got 'lokal'"):
        engine_of("slurm:cluster=lokal")
    with pytest.raises(SettingError, match="expected a machine that submits jobs to SLURM, found no srun here"):
        engine_of("slurm:partition=gpu")


@needs("submitit")
def test_a_failing_job_says_why(tmp_path: Path) -> None:
    [each] = cells("small", tmp_path, structures=["attention"], tasks=["copy"], changes=QUICK, seeds=1)
    each.folder.mkdir(parents=True)
    (each.folder / "checkpoint.safetensors").write_text("nonsense")
    with pytest.raises(grid.CellError, match=r"copy · attention · seed 20 failed: .*is damaged.*log.txt"):
        grid.run([each], engine=lambda: engine_of("slurm:cluster=local"))


@pytest.mark.parametrize(("spelling", "message"), [
    ("rya", "unknown engine 'rya': expected local, ray, slurm. Did you mean 'ray'"),
    ("local:gpus=1", "unknown option 'gpus' of local: expected no options"),
    ("ray:gpu=1", "unknown option 'gpu' of ray: expected address, gpus. Did you mean 'gpus'"),
    ("ray:gpus=many", "expected gpus, of each cell, to be a number, got 'many'"),
    ("slurm:partition", "expected options of an engine as KEY=VALUE, got 'partition'"),
])  # fmt: skip
def test_unknown_engines_and_options_are_named(spelling: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        engine_of(spelling)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(name: str, package: str) -> None:
    with patch.dict(sys.modules, {package: None}), pytest.raises(ImportError, match=f"pip install {package}"):
        engine_of(name)


def test_a_cell_waits_for_another_process_at_work_on_it(tmp_path: Path) -> None:
    """As after a machine was cut off, but still computes: the lock is left by the third look."""
    [each] = cells("small", tmp_path, structures=["attention"], tasks=["copy"], changes=QUICK, seeds=1)
    each.folder.mkdir(parents=True)
    (each.folder / "config.json").write_text(json.dumps(each.config.to_dict()))
    other, looks = ExitStack(), list[float]()
    other.enter_context(locked(each.folder))

    def look(seconds: float) -> None:
        looks.append(seconds)
        if looks.count(cell._PAUSE) == 3:
            other.close()

    with patch.object(cell.time, "sleep", look):
        cell.run(each.folder)
    assert looks.count(cell._PAUSE) == 3  # others sleep, too
    assert grid.run([each], engine=lambda: engine_of("rya")) == [each.record()]  # none is made if all is finished
