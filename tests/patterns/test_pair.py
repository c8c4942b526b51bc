"""Pairs A/B: their canonical forms, and what is said of those that make no sense."""

import itertools

import numpy as np
import pytest

import resolvent as rv
from resolvent.patterns import FAMILIES, Pair

CANONICAL = {
    "exponential/exponential": "exponential",
    "exponential+cache/exponential+cache": "exponential+cache",
    "first-order/quadratic": "quadratic+diagonal",
    "exponential+diagonal/quadratic": "quadratic+diagonal",
    "first-order/first-order": "first-order",
    "dense/attention": "attention",
    "exponential/attention": "exponential+attention",
    "exponential/local:3": "exponential+attention",
    "attention/dense": "dense",
    "local:9/order:8": "order:8",
    "dense/exponential": "attention/exponential",
    "order:8/exponential": "local:9/exponential",
    "exponential/order:1": "exponential/first-order",
    "attention/quadratic+diagonal": "attention/quadratic",
    "local:8/exponential+cache": "local:8/exponential+cache",
    " attention / first-order ": "attention/first-order",
    "stride:k**3+3//2/first-order": "stride:k**3+3//2/first-order",
    "stride:(3*k+4)//2/stride:k//3+k+1": "stride:(3*k+4)//2/stride:k//3+k+1",
    "sparse-transformer/two-hop": "sparse-transformer:32/two-hop",
    "bigbird:4,2,2/bigbird:4,2,2,0": "bigbird:4,2,2",
    "bigbird:4,2,2/bigbird:4,2,2,1": "bigbird:4,2,2/bigbird:4,2,2,1",
}


def test_canonical_forms() -> None:
    for spec in CANONICAL:
        p = rv.pattern(spec)
        assert str(p) == CANONICAL[spec]
        assert rv.pattern(CANONICAL[spec]) == p
        assert rv.pattern(repr(p)) == p
        assert isinstance(p, Pair) == ("/" in CANONICAL[spec].replace("//", ""))


SAMPLES = [family.sample for family in FAMILIES.values()]
FEW = [*SAMPLES[:: len(SAMPLES) // 8], "attention", "first-order", "order:3"]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(FEW, FEW)))
def test_a_of_the_one_and_b_of_the_other(a: str, b: str) -> None:
    first, last = rv.pattern(a), rv.pattern(b)
    if first.direct == "diagonal" and not last.recurrent:
        with pytest.raises(rv.PatternError, match="reads nothing but itself"):
            rv.pair(a, b)
        return
    p = rv.pair(a, b)
    assert p == rv.pattern(f"{a}/{b}") == rv.pair(first, last)
    assert np.array_equal(p.mask(3, "a"), first.mask(3, "a"))
    assert np.array_equal(p.mask(3, "b"), last.mask(3, "b"))
    assert rv.pair(p, p) == p


def test_a_pair_has_two_stages() -> None:
    p = rv.pattern("local:4/exponential+cache")
    a, b = p.stages
    assert (a, b) == (rv.pattern("local:4"), rv.pattern("exponential+cache+diagonal"))
    assert p.slots(1024) == a.slots(1024) + b.slots(1024) == 3 + 10
    assert p.with_diagonal_a() == b
    assert p.limit is None
    assert rv.pair(rv.explicit(np.tri(5, dtype=bool)), "dense").limit == 5
    with pytest.raises(rv.PatternError, match=r"use pair\(a, b\)"):
        Pair(b, a)


def test_a_python_function_has_no_spelling_in_a_pair_either() -> None:
    p = rv.pair(lambda k: 2 * k + 1, "first-order")
    assert not p.has_spelling
    assert p.sources(8).tolist() == [1, 3, 5, 7]
    assert p == rv.pair(p, "first-order")


def test_bad_pairs() -> None:
    for spec, message in [
        ("attention/", "'attention/' has one side: expected 'A/B'"),
        ("a/b/c", "3 sides: expected one pattern, or 'A/B'"),
        ("first-order/attention", "reads nothing but itself"),
        ("atention/dense", "unknown pattern 'atention' in 'atention/dense'. Did you mean 'attention'?"),
        ("stride:k/max(k,1)+1", "Integer division is written //"),
        ("fenwick+cache/dense", "reads what is still held already: leave '+cache' out"),
        ("dense/two-hop+cache", "not made of strides"),
    ]:
        with pytest.raises(rv.PatternError) as caught:
            rv.pattern(spec)
        assert message in str(caught.value)
