"""The `triton` backend where it does not run: what it refuses, and what `auto` says. Its kernels: tests/gpu."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from resolvent.bench import gpu_check
from resolvent.cli.bench_gpu import check_gpu as gpu_check_command
from resolvent.ops import triton
from resolvent.ops.backend import Request
from resolvent.ops.registry import choose
from resolvent.ops.triton.sizes import TUNED, Sizes, sizes_for
from tests.commands import command
from tests.operator_cases import mix, mixer_inputs

ON_GPU = Request("mix", "exponential", False, True, "cuda", 8192)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "find_spec", lambda _: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("installed")
def test_auto_takes_it_on_a_gpu() -> None:
    chosen, why = choose("auto", ON_GPU)
    assert (chosen.NAME, "fused kernels" in why) == ("triton", True)
    assert choose("auto", ON_GPU._replace(pattern="dense", is_dense=True))[0].NAME == "dense"
    assert choose("auto", ON_GPU._replace(device="cpu"))[0].NAME == "cpu"


@pytest.mark.usefixtures("installed")
def test_auto_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, why = choose("auto", ON_GPU._replace(dtype=torch.float64))
    assert (chosen.NAME, "expected float32, bfloat16 or float16, got float64" in why) == ("torch", True)
    chosen, why = choose("auto", ON_GPU._replace(dim=512))
    assert (chosen.NAME, "at most 256 channels, got 512" in why) == ("torch", True)
    monkeypatch.setattr(triton, "find_spec", lambda _: None)
    chosen, why = choose("auto", ON_GPU)
    assert (chosen.NAME, "pip install triton" in why) == ("torch", True)


@pytest.mark.usefixtures("installed")
def test_asked_for_it_works_or_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = mixer_inputs(4, torch.float32)
    with pytest.raises(ValueError, match=r"needs tensors on a GPU \(CUDA or ROCm\), got cpu.*Backends that can: cpu"):
        mix(inputs, "exponential", backend="triton")
    with pytest.raises(ValueError, match="expects a sparse pattern, got 'dense'"):
        choose("triton", ON_GPU._replace(pattern="dense", is_dense=True))
    monkeypatch.setattr(triton, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="needs the package triton"):
        mix(inputs, "exponential", backend="triton")


def test_measured_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a report replace the table's, for its architecture and dimension alone."""
    cpu, best = torch.device("cpu"), Sizes(16, 64, 8, 32, 256)
    file = tmp_path / "report.json"
    tuned = {"architecture": "interpreter", "head_dim": 64, "sizes": asdict(best)}
    file.write_text(json.dumps({"tuned": tuned}))
    monkeypatch.setenv("RESOLVENT_GPU_SIZES", str(file))
    assert sizes_for(cpu, 64, 40) == best
    assert sizes_for(cpu, 80, 80) == TUNED["default"][128]
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"tuned": tuned | {"sizes": asdict(best) | {"block": 48}}}))
    monkeypatch.setenv("RESOLVENT_GPU_SIZES", str(wrong))
    with pytest.raises(ValueError, match="expected block 16, 32, 64, got 48"):
        sizes_for(cpu, 64, 64)


def test_gpu_check_without_a_gpu() -> None:
    done = command("bench", "gpu")
    assert done.returncode == 2
    assert "no GPU: torch sees neither CUDA nor ROCm" in done.stderr or "needs the package triton" in done.stderr


def test_gpu_check_goes_on_where_kernels_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU on which nothing runs: each failure is listed with its reason, saved, and asked for."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # so the backend refuses a CPU
    monkeypatch.setattr(gpu_check, "find_device", lambda **_: torch.device("cpu"))
    every = gpu_check.checks
    monkeypatch.setattr(gpu_check, "checks", lambda device, **_: every(device, small=True))
    monkeypatch.setattr(gpu_check, "versions", lambda: {"triton": "none"})
    monkeypatch.setattr(gpu_check, "timings", lambda *_: [])
    with pytest.raises(SystemExit) as stopped:
        gpu_check_command(out=tmp_path / "report.json")
    assert stopped.value.code == 1
    printed = capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    names = [check["name"].partition(":")[0] for check in report["checks"]]
    kinds = ("float32", "by blocks", "decode")
    strided = [f"exponential {kind}" for kind in kinds if kind != "by blocks"]
    assert names == [*strided, *(f"exponential+cache {kind}" for kind in kinds)]
    assert all("backend 'triton' needs" in check["name"] for check in report["checks"])
    assert not report["passed"]
    assert "0 of 5 checks passed" in printed.out
    assert "please send us" in " ".join((printed.out + printed.err).split())
