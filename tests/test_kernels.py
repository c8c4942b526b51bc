"""Machine code of kernels: compiled once, by processes of their own, and loaded without Numba."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from resolvent.kernels import Kernel, KernelVariant, process
from tests.confined import run

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
