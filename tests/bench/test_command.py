"""`resolvent bench` as a user meets it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from llvmlite import binding
from typer.testing import CliRunner

from resolvent.bench import read_bench_records
from resolvent.bench.record import AVX2_ALONE, Host
from resolvent.cli import app, bench_plan

SMALL = ["--n", "8", "--rounds", "1", "--against", "none"]
SHAPE = ["--heads", "1", "--head-dim", "8"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments: str) -> Result:
    done = CliRunner().invoke(app, ["bench", *arguments, "--threads", "1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def error_of(*arguments: str) -> str:
    return str(CliRunner().invoke(app, ["bench", *arguments]).exception)


def test_records_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prints its tables, and its record goes into the file."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    out = tmp_path / "bench-here.jsonl"
    printed = {
        kind: call(*words, "--out", str(out)).stdout
        for kind, words in {
            "operator": ["operator", "order:2", *SMALL, *SHAPE],
            "decode": ["decode", "order:2", "--n", "8", "--rounds", "1", *SHAPE],
            "generate": ["generate", "order:2", "--preset", "tiny", "--tokens", "1", "--batch", "2", *SMALL],
            "training": ["train-step", "order:2", "--preset", "tiny", *SMALL],
        }.items()
    }
    records = read_bench_records(out)
    assert [record.kind for record in records] == list(printed)
    assert {(record.host.threads, record.host.wait_policy) for record in records} == {(1, "plain")}
    assert "batch 1, 1 heads of 8, float32, forward on 8 tokens" in printed["operator"]
    assert "batch 1, 1 heads of 8, float32, one token after 8 tokens" in printed["decode"]
    assert "tiny, batch 2, ragged after 8 tokens" in printed["generate"]
    assert "tiny, batch 1 on 8 tokens" in printed["training"]
    assert "OMP_WAIT_POLICY" not in os.environ


def test_json_and_figure(tmp_path: Path) -> None:
    picture, words = tmp_path / "speed.svg", ["operator", "exponential", *SHAPE, *SMALL, "--n", "16", "--memory"]
    content = json.loads(call(*words, "--json", "--plot", str(picture)).stdout)
    assert content["format"] == "resolvent-bench"
    assert sorted({m["n"] for m in content["measurements"]}) == [8, 16]
    assert "<svg" in picture.read_text()
    assert "growth of time" in " ".join(call(*words).stdout.split())


def test_quick_is_small() -> None:
    for mode, full in bench_plan.PLANS.items():
        plan = bench_plan.QUICK[mode]
        assert (plan.rounds < full.rounds, max(plan.lengths) <= max(full.lengths)) == (True, True)
        assert plan.preset in ("", "tiny")
        assert plan.changed(["dense"], ["2k,1k"], 9, "small") == bench_plan.Plan(["dense"], [1024, 2048], 9, "small")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The command lines and environments of processes that would be started; they end with code 7, or 0 below `all`."""
    processes: list[tuple[list[str], dict[str, str]]] = []

    def start(words: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        processes.append((words[words.index("resolvent") + 1 :] if "resolvent" in words else [], env))
        return subprocess.CompletedProcess([], 0 if "--out" in words else 7)

    monkeypatch.setattr(bench_plan.subprocess, "run", start)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    return processes


def test_all_runs_everything_in_both_policies(tmp_path: Path, started: list[tuple[list[str], dict[str, str]]]) -> None:
    out = str(tmp_path / "bench.jsonl")
    for flags, policies in (([], ["plain", "passive"]), (["--quick", "--wait-policy", "passive"], ["passive"])):
        started.clear()
        done = CliRunner().invoke(app, ["bench", "all", out, *flags])
        assert done.exit_code == 0, done.output
        assert all(("--quick" in words) == bool(flags) and out in words for words, _ in started)
        ran = {(words[1], words[-1], env.get("OMP_WAIT_POLICY", "plain")) for words, env in started}
        assert ran == {(mode, policy, policy) for mode in bench_plan.PLANS for policy in policies}


def test_settings_of_a_process_start_the_command_again(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; where AVX-512 is forbidden, records have the features that are left."""
    for flags in (["--wait-policy", "plain"], ["--wait-policy", "passive"], ["--avx2"]):
        assert CliRunner().invoke(app, ["bench", "operator", *flags]).exit_code == 7
    assert [env.get("OMP_WAIT_POLICY") for _, env in started] == [None, "passive", "active"]
    assert {name: started[-1][1][name] for name in AVX2_ALONE} == AVX2_ALONE
    for name, value in AVX2_ALONE.items():
        monkeypatch.setenv(name, value)
    bench_plan.apply_avx2()
    assert len(started) == 3
    has = binding.get_host_cpu_features() | {"avx2": True, "avx512f": True}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: has)
    assert {"avx2", "avx512f"} & set(Host.current(1).features) == {"avx2"}
    monkeypatch.delenv("NUMBA_CPU_NAME")
    assert {"avx2", "avx512f"} <= set(Host.current(1).features)


def test_other_commands_let_waiting_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    CliRunner().invoke(app, ["analyze", "dense", "--draw", "--n", "4"])
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(("arguments", "message"), [
    (["all", "x.json"], "expected a file of records that ends in .jsonl, got 'x.json'"),
    (["operator", "--wait-policy", "pasive"], "--wait-policy plain, .* got 'pasive'. Did you mean 'passive'"),
    (["operator", "--rounds", "0"], "expected --rounds to be at least 1, got 0"),
    (["operator", "--n", "8,no"], "expected an integer ≥ 1 or a string such as '128k', got 'no'"),
])  # fmt: skip
def test_errors(arguments: list[str], message: str) -> None:
    assert re.search(message, error_of(*arguments)), error_of(*arguments)


def test_errors_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "runs.jsonl"
    out.write_text("{}\n")
    assert "line 1: expected a benchmark's record" in error_of("generate", "--out", str(out))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'transformers>=5.22,<6', or choose --against none" in error_of("generate", "--quick")
