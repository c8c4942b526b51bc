"""Times of the operator: peers that compute the right thing, bounds of the right work, bytes that were held."""

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.bench import bench, bench_decode, machine, peers
from resolvent.bench.run import gradients
from resolvent.ops import cpu
from resolvent.ops.backend import Token
from resolvent.studies import speed
from tests.operator_cases import NAMES, Largest, assert_close, mix

SMALL: dict[str, Any] = {"heads": 2, "head_dim": 8, "rounds": 2}
# Fixed distances, positions as long as they live, one source, a diagonal A, no feedback, a pair, rows one by one.
STRUCTURES = ["exponential", "quadratic+cache", "first-order", "exponential+diagonal", "local:8",
              "local:3/exponential+cache", "bigbird:2,1,1+attention"]  # fmt: skip


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
    record = bench([p], [128, 256], peers=("flex",), **SMALL)
    if not record.missing:
        assert list(record.at("forward", 128)) == ["flex exponential+cache", "exponential+cache"]
        problem = peers.Problem(256, 1, 2, 8)
        mask = torch.from_numpy(p.mask(256, "a"))
        with torch.no_grad():
            y = peers.make_case("flex", problem, p).run()
            attention = torch.nn.functional.scaled_dot_product_attention
            expected = attention(problem.qa, problem.ka, problem.x, attn_mask=mask)
        assert_close(y, expected)


def test_record() -> None:
    """Both passes of every case that has them, with the shares of their bounds."""
    record = bench([rv.exponential(), rv.quadratic()], 64, peers=("sdpa", "paper", "scipy"), **SMALL)
    assert (record.kind, record.shape, record.rounds) == ("operator", "batch 1, 2 heads of 8, float32", 2)
    forward, both = record.at("forward", 64), record.at("forward and backward", 64)
    assert list(forward) == ["sdpa", "paper", "scipy exponential", "scipy quadratic", "exponential", "quadratic"]
    assert list(both) == ["sdpa", "paper", "exponential", "quadratic"]
    assert [name for name, m in forward.items() if m.peer] == list(forward)[:4]
    assert forward["scipy exponential"].share is None
    work = 4 * 64 * 64 / 2 * 8 * 2 / 100e9  # of attention, at 100 GFLOP/s
    for name, times in (("sdpa", 1), ("paper", 2)):  # A, and B alike
        assert forward[name].share == pytest.approx(times * work / forward[name].seconds)
        assert both[name].share == pytest.approx(3.5 * times * work / both[name].seconds)
    loads = peers.Problem(64, 1, 2, 8).loaded_bytes(rv.exponential()) / 200e9  # at 200 GB/s
    assert both["exponential"].share == pytest.approx(3 * loads / both["exponential"].seconds)
    assert speed.peers(record) == ["sdpa", "paper", "scipy"]
    own = forward["scipy quadratic"].seconds / forward["quadratic"].seconds
    assert speed.speedup(record, forward["quadratic"], "scipy") == pytest.approx(own)  # each pattern has its own
    assert speed.speedup(record, forward["sdpa"], "scipy") is None
    assert speed.growth(record) is None
    assert any(note.startswith("scipy: scipy.sparse") for note in speed.notes(record))


@pytest.mark.parametrize(("wrong", "message"), [
    ({"peers": ("scypi",)}, "expected peers among sdpa, flex, paper, scipy, .*Did you mean 'scipy'"),
    ({"rounds": 0}, "expected rounds to be an integer ≥ 1, got 0"),
    ({"n": []}, "at least one length"),
])  # fmt: skip
def test_bad_input(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(rv.PatternError, match=message):
        bench([rv.exponential()], **{"n": 8, **wrong})


def test_loads_are_counted_by_pair() -> None:
    """What a forward must load, against a loop over the tokens."""
    problem = peers.Problem(50, 2, 3, 4)
    for spec, vectors in {"exponential": 4, "quadratic+cache": 4, "attention": 2, "first-order": 1}.items():
        p = rv.pattern(spec)
        pairs = sum(len(p.sources(i)) for i in range(50))
        assert problem.loaded_bytes(p) == pytest.approx(pairs * vectors * 4 * 4 * 3 * 2)


def test_missing_peers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, no SciPy, no room: a line each, no crash; and no speedup without a peer."""

    def no_compiler(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No working C++ compiler found.\nA long story.")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setattr(peers, "_LARGEST_BYTES", 100_000)
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    record = bench([rv.exponential()], 64, peers=("paper", "flex", "scipy"), **SMALL)
    assert list(record.at("forward", 64)) == ["exponential"]
    assert speed.peers(record) == []
    reasons = {missing.case: missing.reason for missing in record.missing}
    assert "64 tokens: its matrices of n × n for 2 heads would take" in reasons["paper"]
    assert reasons["flex exponential"].endswith("FlexAttention does not compile here: No working C++ compiler found")
    assert "SciPy is missing: pip install" in reasons["scipy exponential"]
    assert any(note.startswith("Not measured: scipy exponential (64 tokens: SciPy") for note in speed.notes(record))


def test_sparse_does_less_than_the_papers_way() -> None:
    """Counted, forward and backward: the paper's way has n × n matrices, a sparse pattern nothing near them."""
    problem, largest = peers.Problem(1024, 1, 2, 64), []
    for case in (peers.make_case("paper", problem), peers.ours(problem, rv.exponential(), "auto")):
        with Largest() as counted:
            gradients(case, problem.weights)
        largest.append(counted.elements)
    assert largest[0] >= 2 * 1024**2
    assert largest[1] <= 2 * problem.x.numel()


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
    record = bench([rv.exponential()], [1024, 2048], heads=4, rounds=1, memory=True)
    for n in (1024, 2048):
        assert record.at("forward", n)["sdpa"].peak_bytes is None
        sdpa, exponential = (m.peak_bytes for m in record.at("forward and backward", n).values())
        if sdpa is None or exponential is None:
            pytest.skip("peak memory cannot be known here")
        x = 4 * 4 * 64 * n
        assert 4 * x <= sdpa < 40 * x  # the output, and gradients of query, key and value
        assert 6 * x <= exponential < 40 * x  # the output, and gradients of x, qa, ka, qb, kb


def test_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of several tries, by a clock of our own: half a second each, and two for each in the second round."""
    monkeypatch.setattr(machine, "_REPEATS", 2)
    ran = []

    def seconds(run: Any) -> float:
        run()
        ran.append(run)
        return 0.5 if len(ran) <= len(dataclasses.fields(machine.Machine)) else 2.0

    monkeypatch.setattr(machine, "seconds", seconds)
    found = machine.measure_machine()
    assert len(ran) == 2 * len(dataclasses.fields(found))
    assert found.matmul_gflops == pytest.approx(2 * 1024**3 / 0.5 / 1e9)
    assert (found.l1_gbs, found.l2_gbs) == pytest.approx((2**29 / 0.5 / 1e9,) * 2)
    assert found.dram_gbs > 0


def test_decoding() -> None:
    patterns = [rv.pattern(spec) for spec in ("exponential+cache", "attention", "fenwick", "attention/first-order")]
    record = bench_decode(patterns, [200], heads=2, head_dim=16, rounds=2)
    assert (record.kind, record.shape) == ("decode", "batch 1, 2 heads of 16, float32")
    cases = record.at("one token", 200)
    assert list(cases) == ["sdpa", *map(str, patterns)]
    assert cases["sdpa"].cache_bytes == 2 * 2 * 200 * 16 * 4
    for p in patterns:
        assert cases[str(p)].cache_bytes == rv.cost(p, 200, heads=2, head_dim=16).cache_bytes


def test_decoding_does_not_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache-efficient token reads and keeps a few slots at any position, attention's all. Counted, not timed."""
    slots_read, step = list[int](), cpu.step

    def counted(token: Token, scale: float) -> torch.Tensor:
        slots_read.append(len(token.reads))
        return step(token, scale)

    monkeypatch.setattr(cpu, "step", counted)
    record = bench_decode([rv.pattern("exponential+cache")], [512, 32768], heads=4, rounds=1)
    before, after = (record.at("one token", n) for n in (512, 32768))
    assert max(slots_read) <= 2 * min(slots_read)
    assert after["sdpa"].cache_bytes == 64 * before["sdpa"].cache_bytes
    assert after["exponential+cache"].cache_bytes <= 2 * before["exponential+cache"].cache_bytes
