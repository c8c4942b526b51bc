"""The bench measures what it says: peers that compute the right thing, ratios of medians, bytes that were held."""

import dataclasses
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

import resolvent as rv
from resolvent.bench import bench, bench_decode, machine, peers, read_bench_records
from resolvent.bench.measure import gradients
from resolvent.bench.results import Report, trend
from resolvent.cli import app
from resolvent.ops import cpu
from resolvent.ops.backend import Token
from resolvent.report import figures, tables
from tests.operator_cases import NAMES, Largest, assert_close, mix

SMALL: dict[str, Any] = {"heads": 2, "head_dim": 8, "rounds": 2}
STRUCTURES = [*rv.PAPER_STRUCTURES, "exponential+diagonal", "quadratic+cache+attention", "offsets:2,5",
              "local:3/exponential+cache", "two-hop/fenwick", "bigbird:2,1,1+attention", "butterfly"]  # fmt: skip


@pytest.fixture(autouse=True)
def measure_the_machine_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_REPEATS", 2)


def printed(report: Report) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    for length in report.lengths:
        console.print(tables.speeds(report, length))
    console.print(tables.speed_growth(report))
    console.print(tables.speed_notes(report), markup=False)
    return " ".join(console.export_text().split())


def test_the_papers_way_is_the_dense_mixer() -> None:
    problem = peers.Problem(20, 2, 3, 4)
    names = dict(zip(NAMES, problem.inputs, strict=True))
    assert_close(peers.make_case("paper", problem).run(), mix(names, "dense", backend="reference"))


@pytest.mark.parametrize("spec", STRUCTURES)
def test_scipys_way_is_the_solve(spec: str) -> None:
    """SciPy gets the pattern's own matrices, and its case returns (I - B)^-1 A x."""
    pytest.importorskip("scipy")
    p, n = rv.pattern(spec), 33
    problem = peers.Problem(n, 1, 2, 4)
    case = peers.make_case("scipy", problem, p)
    a, left = (matrix.toarray() for matrix in peers.sparse_matrices(p, n))
    assert np.array_equal(a != 0, p.mask(n, "a"))
    assert np.array_equal(left - np.eye(n) != 0, p.mask(n, "b"))
    expected = np.linalg.solve(left, a @ problem.x.detach().numpy()[0, 0])
    for _ in range(2):  # nothing was overwritten
        assert_close(torch.from_numpy(case.run()), torch.from_numpy(expected), torch.float32)
    assert (case.repeats, case.inputs) == (2, ())


@pytest.mark.parametrize("spec", STRUCTURES)
def test_flex_mask_is_the_patterns(spec: str) -> None:
    p, n = rv.pattern(spec), 70
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    assert np.array_equal(peers.a_mask(p, n)(0, 0, i, j).numpy(), p.mask(n, "a"))


@pytest.mark.slow
def test_flex_is_attention_on_the_pattern() -> None:
    """Compiles C++; where it cannot, the peer has to be reported as missing instead."""
    p = rv.pattern("exponential+cache")
    report = bench([p], [128, 256], peers=("flex",), **SMALL)
    if not report.lengths[0].missing:
        assert [timing.case for timing in report.lengths[0].timings] == ["flex exponential+cache", "exponential+cache"]
        problem = peers.Problem(256, 1, 2, 8)
        mask = torch.from_numpy(p.mask(256, "a"))
        with torch.no_grad():
            y = peers.make_case("flex", problem, p).run()
            attention = torch.nn.functional.scaled_dot_product_attention
            expected = attention(problem.qa, problem.ka, problem.x, attn_mask=mask)
        assert_close(y, expected)


def test_report() -> None:
    chosen = [rv.exponential(), rv.quadratic()]
    report = bench(chosen, 64, peers=("sdpa", "paper", "scipy"), **SMALL)
    [length] = report.lengths
    names = ["sdpa", "paper", "scipy exponential", "scipy quadratic", "exponential", "quadratic"]
    assert [timing.case for timing in length.timings] == names
    yardstick = length.timings[0]
    assert yardstick.both
    assert yardstick.forward.speedup == yardstick.both.speedup == 1
    for timing in length.timings:
        assert timing.forward.range_ms[0] <= timing.forward.ms <= timing.forward.range_ms[1]
        assert timing.forward.speedup == pytest.approx(yardstick.forward.ms / timing.forward.ms)
        assert timing.memory is None
        if timing.peer == "scipy":
            assert (timing.both, timing.bound) == (None, None)
            assert "times 2; forward only" in timing.note
        else:
            assert timing.both
            assert timing.bound == ("matmul" if timing.peer else "loads")
            assert timing.forward.share
            assert timing.both.share
    sdpa, paper = (timing.forward for timing in length.timings[:2])
    assert paper.share * paper.ms == pytest.approx(2 * sdpa.share * sdpa.ms)  # the time at full speed: A, and B alike
    assert report.growth == []
    assert isinstance(json.dumps(report.to_dict()), str)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"peers": ("flash",)}, "expected peers among sdpa, flex, paper, scipy, got flash"),
        ({"peers": ("scypi",)}, "Did you mean 'scipy'?"),
        ({"rounds": 0}, "expected rounds to be an integer ≥ 1, got 0"),
        ({"n": 0}, "expected an integer ≥ 1 or a string such as '128k', got 0"),
        ({"n": []}, "at least one length"),
    ],
)
def test_bad_input(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(rv.PatternError, match=message.replace("?", r"\?")):
        bench([rv.exponential()], **{"n": 8, **wrong})


def test_loads_are_counted_by_pair() -> None:
    """What a forward must load, against a loop over the tokens."""
    problem = peers.Problem(50, 2, 3, 4)
    for spec, vectors in {"exponential": 4, "quadratic+cache": 4, "attention": 2, "first-order": 1}.items():
        p = rv.pattern(spec)
        pairs = sum(len(p.sources(i)) for i in range(50))
        assert problem.loaded_bytes(p) == pytest.approx(pairs * vectors * 4 * 4 * 3 * 2)


def test_missing_peers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, no SciPy, no room: a line each, no crash; and no speedup without a yardstick."""

    def no_compiler(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No working C++ compiler found.\nA long story.")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setattr(peers, "_LARGEST_BYTES", 100_000)
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    report = bench([rv.exponential()], 64, peers=("paper", "flex", "scipy"), **SMALL)
    [length] = report.lengths
    assert [timing.case for timing in length.timings] == ["exponential"]
    assert length.timings[0].forward.speedup is None
    reasons = {case.case: case.reason for case in length.missing}
    assert "its matrices of n × n for 2 heads would take" in reasons["paper"]
    assert reasons["flex exponential"] == "FlexAttention does not compile here: No working C++ compiler found"
    assert reasons["scipy exponential"] == "SciPy is missing: pip install scipy"
    assert "pip install scipy" in printed(report)
    assert figures.speed_figure(report)


def test_yardstick_of_the_same_pattern() -> None:
    chosen = [rv.exponential(), rv.quadratic()]
    report = bench(chosen, 64, peers=("scipy", "sdpa"), **SMALL)
    found = {timing.case: timing for timing in report.lengths[0].timings}
    for name in ("exponential", "quadratic"):
        expected = found[f"scipy {name}"].forward.ms / found[name].forward.ms
        assert found[name].forward.speedup == pytest.approx(expected)
        assert found[name].both.speedup is None  # type: ignore[union-attr]
    assert found["sdpa"].forward.speedup is None
    assert "speedup over scipy on the same pattern" in printed(report)


def test_sparse_does_less_than_the_papers_way() -> None:
    """Counted, forward and backward: the paper's way has n × n matrices, a sparse pattern nothing near them."""
    problem, largest = peers.Problem(1024, 1, 2, 64), []
    for case in (peers.make_case("paper", problem), peers.ours(problem, rv.exponential(), "auto")):
        with Largest() as counted:
            gradients(case, problem.weights)
        largest.append(counted.elements)
    assert largest[0] >= 2 * 1024**2
    assert largest[1] <= 2 * problem.x.numel()


def test_growth_fit() -> None:
    """Exact powers are found, uneven lengths included, and a doubling is a doubling."""
    sizes = [100, 400, 800, 8000]
    found = trend([(n, 3e-4 * n**1.5) for n in sizes])
    assert found.n == sizes
    assert found.exponent == pytest.approx(1.5)
    assert found.per_doubling == pytest.approx([2**1.5] * 3)
    assert trend([(16, 5.0), (32, 5.0)]).exponent == pytest.approx(0)


def test_peak_is_what_was_held() -> None:
    """To within some pages, in a new process; the same again after it was freed, and not twice for two in a row.

    The system counts these pages by process, so that nothing else on the machine matters.
    """
    code = """
import torch
from resolvent.bench.measure import frugal_allocator, peak_bytes
def hold():
    for _ in range(2):
        torch.ones(24 * 2**18)
with frugal_allocator():
    hold()
    print(peak_bytes(hold), peak_bytes(hold))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for taken in done.stdout.split():
        if taken == "None":
            pytest.skip("peak memory cannot be known here")
        assert 23 < int(taken) / 2**20 < 28


def test_memory_holds_at_least_output_and_gradients() -> None:
    report = bench([rv.exponential()], [1024, 2048], heads=4, rounds=1, memory=True)
    for length in report.lengths:
        sdpa, exponential = (timing.memory for timing in length.timings)
        if sdpa is None or exponential is None:
            pytest.skip("peak memory cannot be known here")
        assert 4 <= sdpa < 40  # the output, and gradients of query, key and value
        assert 6 <= exponential < 40  # the output, and gradients of x, qa, ka, qb, kb


def test_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of several tries, by a clock of our own: half a second each, and two for each in the second round."""
    assert min(dataclasses.astuple(machine.measure_machine())) > 0
    ran, rounds = [], 2

    def seconds(run: Any) -> float:
        run()
        ran.append(run)
        return 0.5 if len(ran) <= len(dataclasses.fields(machine.Machine)) else 2.0

    monkeypatch.setattr(machine, "seconds", seconds)
    found = machine.measure_machine()
    assert len(ran) == rounds * len(dataclasses.fields(found))
    assert found.matmul_gflops == pytest.approx(2 * 1024**3 / 0.5 / 1e9)
    half_a_gibibyte = torch.get_num_threads() * 2**29 / 0.5 / 1e9
    assert (found.l1_gbs, found.l2_gbs) == pytest.approx((half_a_gibibyte, half_a_gibibyte))
    assert found.dram_gbs > 0


def test_figures_show_the_times() -> None:
    report = bench([rv.exponential()], [32, 64], peers=("sdpa", "scipy"), **SMALL)
    axes = Figure().subplots()
    figures.times(axes, report, "forward")
    lines = {container.get_label(): container.lines[0] for container in axes.containers}
    assert list(lines) == ["exponential", "sdpa", "scipy exponential"]
    expected = [length.timings[2].forward.ms for length in report.lengths]
    assert lines["exponential"].get_ydata().tolist() == pytest.approx(expected)
    axes = Figure().subplots()
    figures.speedups(axes, replace(report, lengths=report.lengths[:1]), "both")
    assert [text.get_text() for text in axes.texts][:2] == ["1.0", "not measured"]


COMMAND = ["bench", "operator", "exponential", "--n", "64", "--heads", "2", "--rounds", "2"]


def test_command(tmp_path: Path) -> None:
    """In another process with its own policy for threads that wait, whatever it is in this one."""
    out = tmp_path / "bench.jsonl"
    options = ["--json", "--threads", "1", "--wait-policy", "passive", "--out", str(out)]
    command = [sys.executable, "-m", "resolvent", *COMMAND, *options]
    environment = os.environ | {"OMP_WAIT_POLICY": "active"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    report = json.loads(done.stdout)
    assert [record.host.wait_policy for record in read_bench_records(out)] == ["passive"]
    [length] = report["lengths"]
    assert (length["n"], report["threads"], len(length["timings"])) == (64, 1, 2)


def test_command_over_several_lengths(tmp_path: Path) -> None:
    picture = tmp_path / "speed.svg"
    done = CliRunner().invoke(app, [*COMMAND, "--n", "128", "--memory", "--plot", str(picture)])
    assert done.exit_code == 0
    for word in (
        "exponential",
        "GFLOP/s",
        "GB/s from L1",
        "n = 128 tokens",
        "growth of time",
        "n^",
        "of bound, patterns",
    ):
        assert word in " ".join(done.stdout.split())
    assert "<svg" in picture.read_text()


def test_decoding_report() -> None:
    report = bench_decode(
        [rv.pattern("exponential+cache"), rv.pattern("attention")], [200], heads=2, head_dim=16, rounds=2
    )
    [position] = report.positions
    assert [step.case for step in position.steps] == ["sdpa", "exponential+cache", "attention"]
    sdpa, sparse, attention = position.steps
    assert sdpa.speedup == 1
    assert sparse.cache_bytes == rv.cost(rv.pattern("exponential+cache"), 200, heads=2, head_dim=16).cache_bytes
    assert attention.cache_bytes < sdpa.cache_bytes == 2 * 2 * 200 * 16 * 4


@pytest.fixture
def slots_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots each token reads that the kernel for single tokens is called for."""
    counts, step = list[int](), cpu.step

    def counted(token: Token, scale: float) -> torch.Tensor:
        counts.append(len(token.reads))
        return step(token, scale)

    monkeypatch.setattr(cpu, "step", counted)
    return counts


def test_decoding_does_not_slow_down(slots_read: list[int]) -> None:
    """A cache-efficient token reads and keeps a few slots at any position, attention's all. Counted, not timed."""
    report = bench_decode([rv.pattern("exponential+cache")], [512, 32768], heads=4, rounds=1)
    (before, early), (attention, late) = (position.steps for position in report.positions)
    assert min(step.us for step in (before, early, attention, late)) > 0
    assert max(slots_read) <= 2 * min(slots_read)
    assert attention.cache_bytes == 64 * before.cache_bytes
    assert late.cache_bytes <= 2 * early.cache_bytes


@pytest.mark.parametrize("spec", ["bigbird:2,1,1", "fenwick", "attention/first-order"])
def test_bench_takes_published_patterns_and_pairs(spec: str) -> None:
    p = rv.pattern(spec)
    report = bench([p], 64, **SMALL)
    assert [timing.case for timing in report.lengths[0].timings] == ["sdpa", spec]
    decoded = bench_decode([p], [64], batch=1, heads=2, head_dim=8, rounds=1)
    [position] = decoded.positions
    assert [step.case for step in position.steps] == ["sdpa", spec]
    assert position.steps[1].cache_bytes == rv.cost(p, 64, heads=2, head_dim=8).cache_bytes
