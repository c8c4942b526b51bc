"""Translation-invariant patterns against their definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given

import resolvent as rv
from resolvent.patterns import strides as listing
from resolvent.patterns.strides import Formula
from tests.oracles import STRIDES, increasing, strides_below, translation_invariant_sets

N = 200
CONTIGUOUS = {"attention": None, "dense": None, "order:5": 5, "local:5": 4, "first-order": 1, "local:1": 0}


def check(p: rv.Pattern, sets: list[set[int]]) -> None:
    n = len(sets)
    for i, expected in enumerate(sets):
        assert p.sources(i).tolist() == sorted(expected)
        assert p.reads(i) == len(expected)
        assert np.flatnonzero(p.allows(i, np.arange(n))).tolist() == sorted(expected)
    held: dict[int, int] = {}
    for i, expected in enumerate(sets):
        assert [held.get(p.slot(j)) for j in sorted(expected)] == sorted(expected)
        if p.slot(i) >= 0:
            held[p.slot(i)] = i
            assert i == n - 1 or p.slot(i) < p.slots(n)
    assert p.period(n) == 1


@pytest.mark.parametrize("text", STRIDES)
def test_families(text: str) -> None:
    strides = strides_below(STRIDES[text], N)
    p = rv.pattern(f"stride:{text}")
    check(p, translation_invariant_sets(strides, N))
    assert p.offsets(N).tolist() == strides
    assert p.life(3) == math.inf


@given(increasing)
def test_random_lists(values: list[int]) -> None:
    p = rv.strided(values)
    check(p, translation_invariant_sets(values, 90))
    assert p.life(7) == values[-1]


def test_contiguous() -> None:
    for spec, size in CONTIGUOUS.items():
        strides = range(1, N if size is None else size + 1)
        check(rv.pattern(spec), translation_invariant_sets(strides, N))


def test_function_of_k() -> None:
    p = rv.strided(lambda k: k**3 + 1)
    same = rv.pattern("stride:k**3+1")
    assert all(p.sources(i).tolist() == same.sources(i).tolist() for i in range(40))
    assert p == rv.strided(p.strides.function)
    assert p != rv.strided(lambda k: k**3 + 1)  # equal only to the very same function


@pytest.mark.parametrize("text", ["k+1", "k**2+1", "3*k**2+k+1", "10**9*k**4+1", "2**k+5*k**2", "k**(2+1)+2*k-3+4"])
def test_strides_at_once_are_those_one_by_one(text: str) -> None:
    strides = Formula.parse(text)
    for limit in (1, 1000, 1 << 17, 1 << 30 if "**" in text else 1 << 18):
        values = itertools.takewhile(lambda value, limit=limit: value < limit, map(strides.value, range(1 << 21)))
        assert strides.below(limit).tolist() == list(values)


def test_strides_that_turn_back_far_out_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected f\(1001\) > f\(1000\), got 1000000 after 1000001"):
        Formula.parse("k*(2000-k)+1").below(1 << 21)


def test_too_many_strides_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_STRIDES", 100)
    assert len(Formula.parse("11*k+2").below(1024)) == 93
    with pytest.raises(ValueError, match="more than 100 strides"):
        Formula.parse("11*k+2").below(1 << 20)


def test_a_and_b_of_the_named_structures() -> None:
    use = {spec: (rv.pattern(spec).direct, rv.pattern(spec).recurrent) for spec in rv.PAPER_STRUCTURES}
    assert use["attention"] == use["local:8"] == ("all", False)
    assert use["first-order"] == ("diagonal", True)
    rest = set(rv.PAPER_STRUCTURES) - {"attention", "local:8", "first-order"}
    assert {use[spec] for spec in rest} == {("all", True)}


def test_shared_arrays_are_read_only() -> None:
    for spec in ("attention", "exponential"):
        offsets = rv.pattern(spec).offsets(50)
        with pytest.raises(ValueError, match="read-only"):
            offsets[0] = 7
