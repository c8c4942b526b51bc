"""The bench measures what it says: peers that compute the right thing, and ratios of medians."""

import json
import subprocess
import sys

import pytest
import torch

import resolvent as rv
from resolvent.bench import bench, dense_solve


def test_the_papers_way_is_the_dense_mixer() -> None:
    x, qa, ka, qb, kb = (torch.randn(2, 3, 20, 4) for _ in range(5))
    gate = torch.rand(2, 3, 20)
    torch.testing.assert_close(dense_solve(x, qa, ka, qb, kb, gate), rv.mix(x, qa, ka, qb, kb, gate, "dense"))


def test_report() -> None:
    report = bench([rv.exponential(), rv.quadratic()], 64, peers=("sdpa", "paper"), heads=2, head_dim=8, rounds=3)
    assert [timing.case for timing in report.timings] == ["sdpa", "paper", "exponential", "quadratic"]
    yardstick = report.timings[0]
    assert yardstick.forward_speedup == yardstick.both_speedup == 1
    for timing in report.timings:
        assert timing.forward_range_ms[0] <= timing.forward_ms <= timing.forward_range_ms[1]
        assert timing.both_speedup == pytest.approx(yardstick.both_ms / timing.both_ms)
    with pytest.raises(rv.PatternError, match="expected peers among sdpa, paper, got flash"):
        bench([rv.exponential()], 8, peers=("flash",))


def test_sparse_is_faster_than_the_papers_way() -> None:
    """By a margin that no noise can eat: it is some fifty times at this length."""
    report = bench([rv.exponential()], 1024, peers=("paper",), heads=2, rounds=3)
    assert report.timings[1].both_speedup > 3


def test_command() -> None:
    command = [sys.executable, "-m", "resolvent", "bench", "exponential", "--n", "64", "--heads", "2", "--rounds", "2"]
    done = subprocess.run([*command, "--json", "--threads", "1"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert (report["n"], report["threads"], len(report["timings"])) == (64, 1, 2)
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "exponential" in table
    assert "GFLOP/s" in table
