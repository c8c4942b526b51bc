"""A million tokens: a handful of steps per question, and no table that grows with n."""

import pytest

import resolvent as rv
from tests.counting import calls, peak_bytes

N = 1_000_000


@pytest.mark.parametrize("spec", [*rv.PAPER_STRUCTURES, "stride:k**3+1+cache", "dense+cache"])
def test_a_question_touches_only_its_answer(spec: str) -> None:
    """Counted: calls, and bytes held at once; the lattice takes some arrays as long as there are strides below n."""
    p = rv.pattern(spec)
    width = 1 if p.reads(N) == N else len(p.strides.below(N))  # a run of all positions is a view of one array
    for i in (N - 1, 983_039, 777_777):
        p.sources(i), p.slot(i)  # the first call prepares the levels
        assert calls(lambda i=i: p.sources(i)) < 40
        assert calls(lambda i=i: p.slot(i)) < 40
        assert peak_bytes(lambda i=i: p.sources(i)) < 2048 + 4 * 8 * width
        assert peak_bytes(lambda i=i: p.slot(i)) < 2048


def test_far_positions() -> None:
    """Spot checks where no table could reach."""
    far = 10**12
    assert rv.exponential().sources(far).tolist() == sorted(far - 2**k for k in range(40))
    p = rv.pattern("exponential+cache")
    assert p.reads(far) == len(p.sources(far)) == 40
    assert all(0 < far - j <= p.life(j) for j in p.sources(far).tolist())
    assert p.slot(2**39 - 1) == 39


def test_strides_are_listed_no_further_than_needed() -> None:
    """Of a sequence with bounded gaps 65,536 levels are looked at; limits grow fourfold, and no more is listed."""
    asked = 0

    def distance(k: int) -> int:
        nonlocal asked
        asked += 1
        return k + 1

    assert rv.strided(distance).cache_efficient().life(0) == float("inf")
    assert asked < 1.5 * 4 * 65_536
