"""A million tokens: microseconds per question, and no table that grows with n²."""

import timeit

import pytest

import resolvent as rv

N = 1_000_000


def best_microseconds(call: object, number: int) -> float:
    """The quietest of several batches: what the code costs, not what else the machine does."""
    return min(timeit.repeat(call, number=number, repeat=7)) / number * 1e6


@pytest.mark.parametrize("spec", [*rv.PAPER_STRUCTURES, "stride:k**3+1+cache", "dense+cache"])
def test_microseconds(spec: str) -> None:
    p = rv.pattern(spec)
    for i in (N - 1, 983_039, 777_777):
        p.sources(i), p.slot(i)  # the first call prepares the levels
        assert best_microseconds(lambda i=i: p.sources(i), 50) < 50
        assert best_microseconds(lambda i=i: p.slot(i), 200) < 10


def test_far_positions() -> None:
    """Spot checks where no table could reach."""
    far = 10**12
    assert rv.exponential().sources(far).tolist() == sorted(far - 2**k for k in range(40))
    p = rv.pattern("exponential+cache")
    assert p.reads(far) == len(p.sources(far)) == 40
    assert all(0 < far - j <= p.life(j) for j in p.sources(far).tolist())
    assert p.slot(2**39 - 1) == 39
