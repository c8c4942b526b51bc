"""Machine code of kernels: compiled once, by processes of their own, and loaded without Numba."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resolvent.kernels import Kernel, KernelVariant, process, variants_of
from tests.confined import run
from tests.test_walk import one_thread

SCAN = KernelVariant("scan.forward", "<f4,<f4,<f4,<f4,i,i,i,i")
USE = """
import sys, torch
import resolvent as rv
layer = rv.Mixer(32, 2, "exponential+cache")
layer(torch.ones(1, 20, 32)).sum().backward()
absent = [name for name in ("numba", "scipy", "torch._dynamo", "torch._inductor") if name not in sys.modules]
print(*absent)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for machine code, here and in processes that are started from here."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("resolvent.kernels.variant.kernel_folder", lambda: tmp_path / "resolvent")
    monkeypatch.setattr(process, "_started", {})
    monkeypatch.setattr(process, "_announced", False)
    return tmp_path / "resolvent"


def scan(kernel: Kernel) -> list[float]:
    x, y = np.ones(3, dtype=np.float32), np.zeros(3, dtype=np.float32)
    kernel(x / 2, x, x[:0], y, 3, 1, 0, 1)
    return y.tolist()


def test_a_layer_runs_without_numba_and_dynamo() -> None:
    """Once its kernels are on disk; importing either takes longer than all the rest."""
    for _ in range(2):
        done = run("-c", USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numba", "scipy", "torch._dynamo", "torch._inductor"]
    assert done.stderr == ""


def test_first_use_says_so_and_leaves_one_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert scan(Kernel("scan.forward")) == [1, 1.5, 1.75]
    assert capfd.readouterr().err.startswith(process.COMPILING)
    (file,) = folder.iterdir()  # and no lock
    written = file.stat().st_mtime_ns
    assert scan(Kernel("scan.forward")) == [1, 1.5, 1.75]
    assert file.stat().st_mtime_ns == written
    assert capfd.readouterr().err == ""

    file.write_bytes(file.read_bytes()[:-1])  # damage is noticed
    assert SCAN.read() is None
    assert scan(Kernel("scan.forward")) == [1, 1.5, 1.75]
    assert SCAN.read() is not None


def test_many_processes_compile_once(folder: Path) -> None:
    """Each waits for the one that was first: Numba is imported by that one only."""
    command = [sys.executable, "-X", "importtime", *process.command([SCAN])[1:]]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    logs = [child.communicate()[1] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sum("resolvent.kernels.emit" in log for log in logs) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("folder")
def test_a_killed_process_leaves_nothing_in_the_way() -> None:
    process.start([[SCAN]])
    child = process._started[SCAN]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert SCAN.read() is None
    assert scan(Kernel("scan.forward")) == [1, 1.5, 1.75]


@pytest.mark.usefixtures("folder")
def test_what_is_on_disk_or_under_way_is_not_started() -> None:
    process.start([[SCAN]])
    child = process._started[SCAN]
    process.start([[SCAN]])
    assert process._started == {SCAN: child}
    assert process.obtain(SCAN) is not None
    child.wait()
    process._started.clear()
    process.start([[SCAN]])
    assert process._started == {}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("trouble", ["no folder", "no process", "not compiled"])
def test_without_machine_code_numba_runs_the_kernel(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    if trouble == "no folder":
        monkeypatch.setattr("resolvent.kernels.variant.kernel_folder", lambda: None)
    elif trouble == "no process":
        monkeypatch.setattr(sys, "executable", os.devnull)
    else:
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    process.start([[SCAN]])
    assert process.obtain(SCAN) is None
    assert scan(Kernel("scan.forward")) == [1, 1.5, 1.75]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_starts_nothing(folder: Path) -> None:
    code = """
import os
from resolvent.kernels import KernelVariant, process
child = os.fork()
if child == 0:
    process.start([[KernelVariant("scan.forward", "<f4,<f4,<f4,<f4,i,i,i,i")]])
    os._exit(len(process._started))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run("-c", code, NUMBA_CACHE_DIR=str(folder)).stdout.strip() == "0"


def test_layers_ask_for_the_kernels_that_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the type of each argument; on the meta device for none."""
    import torch

    import resolvent as rv

    asked: list[KernelVariant] = []
    monkeypatch.setattr(process, "start", lambda groups: asked.extend(v for group in groups for v in group))
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.ones(1, 20, 32)
    layer(x)  # or tables that nobody has filled would be kept
    with one_thread(), variants_of() as used:
        layer(x).sum().backward()
    assert set(used) <= set(asked)
    assert {variant.name for variant in used} >= {"forward.forward", "rounded.backward"}
    asked.clear()
    with torch.device("meta"):
        rv.Mixer(32, 2, "exponential+cache")
    rv.Mixer(32, 2, "dense")
    rv.Mixer(32, 2, "exponential", backend="torch")
    assert not asked


def test_arguments_that_kernels_do_not_take() -> None:
    with pytest.raises(ValueError, match="expected a contiguous array"):
        Kernel("scan.forward")(np.ones(8)[::2])
    with pytest.raises(TypeError, match="kernels take arrays, integers"):
        Kernel("scan.forward")("1")
