"""One spelling everywhere: what can be written, and what is said when it cannot."""

import random

import numpy as np
import pytest

import resolvent as rv
from resolvent.errors import PatternError


def test_equal_patterns_have_one_spelling() -> None:
    assert rv.pattern("stride:2**k") == rv.exponential()
    assert rv.pattern("stride: (k ** 2) + 1 ") == rv.quadratic() == rv.strided("k**2 + 1")
    assert rv.window(8) == rv.pattern("local:8")
    assert rv.strided([1, 4, 9]) == rv.pattern("offsets:1, 4, 9")
    assert rv.exponential().cache_efficient() == rv.pattern(" exponential+cache ")
    assert len({rv.pattern("dense"), rv.pattern("dense"), rv.pattern("attention")}) == 2


BAD = {
    "stride:import os": ["import os", "expected integers, k", "k**2+1"],
    "stride:__import__('os').system('true')": ["not allowed", "expected integers, k"],
    "stride:j+1": ["'j'", "not allowed", "integers, k"],
    "stride:k+1.5": ["1.5", "not allowed"],
    "stride:2^k": ["not allowed", "written **"],
    "stride:k/2+1": ["not allowed", "written //"],
    "stride:k**-1+1": ["negative power"],
    "stride:1//k+1": ["divides by zero at k=0"],
    "stride:10-k": ["must strictly increase", "f(1) > f(0)", "9 after 10"],
    "stride:k": ["0 positions back at k=0", "expected strides ≥ 1", "k+1"],
    "stride:9**9**9**k": ["1024 bits"],
    "stride:": ["cannot read ''"],
    "offsets:1,x": ["expected integers", "1,x"],
    "local:0": ["integer ≥ 1", "'local:8'", "'0'"],
    "local": ["It takes a value", "local:8"],
    "dense:3": ["takes no value"],
    "expnential": ["unknown pattern 'expnential'", "Did you mean 'exponential'?", "Expected one of"],
    "qadratic+cache": ["Did you mean 'quadratic+cache'?"],
    "exponential+cash": ["'+cash' is not a modifier", "Did you mean 'exponential+cache'?"],
    "exponential+attention+diagonal": ["reads nothing but itself"],
    "stride:abs(k,2)+1": ["abs(…) takes one value, got 2"],
    "stride:max(k)+1": ["max(…) takes two values or more, got 1"],
    "offsets:1,99999999999999999999": ["longer than any sequence"],
    "": ["unknown pattern ''", "Expected one of"],
}


@pytest.mark.parametrize("spec", BAD)
def test_bad_spellings(spec: str) -> None:
    with pytest.raises(rv.PatternError) as caught:
        rv.pattern(spec)
    for part in BAD[spec]:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 330


@pytest.mark.parametrize("start", ["order:", "local:", "offsets:1,"])
def test_numbers_of_thousands_of_digits(start: str) -> None:
    """Python refuses to read them with an error of its own, which names no pattern."""
    with pytest.raises(
        PatternError, match=r"99… is longer than any sequence: expected at most 2\*\*62, got 5,000 digits"
    ):
        rv.pattern(start + "9" * 5000)


@pytest.mark.parametrize(("expression", "message"), [
    ("+".join(["k"] * 700), "too long: expected at most 256"),
    ("min(" * 30 + "k" + ",k)" * 30 + "+1", "too complex"),
    ("k+" + "9" * 200, "reads nothing within any sequence"),
    ("10**1000+k", "grows past 1024 bits"),
    ("10**200+k", "reads nothing within any sequence"),
    ("k+1+0*(" + "*".join(["9**200"] * 8) + ")//(" + "*".join(["7**300"] * 4) + ")", "grows past 1024 bits"),
])  # fmt: skip
def test_expressions_are_bounded(expression: str, message: str) -> None:
    """No traceback, and no long wait: text, terms and numbers are limited."""
    with pytest.raises(rv.PatternError, match=message) as caught:
        rv.pattern(f"stride:{expression}").sources(5000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("start", ["", "exponential+", "local:", "offsets:1,", "offsets:1,1,", "dense:", "stride:<"])
def test_messages_are_short_however_long_the_spelling(start: str) -> None:
    for end in ("x" * 10**6, "+cache+cach" * 10**5, "<" * 10**5 + ">"):
        with pytest.raises(rv.PatternError) as caught:
            rv.pattern(start + end)
        assert len(str(caught.value)) < 400


def test_random_spellings_are_refused_or_mean_what_they_say() -> None:
    """Expressions, lists and modifiers at random: `PatternError`, or a pattern whose spelling is that pattern."""
    draw, read = random.Random(0), 0
    terms = [
        "k",
        "1",
        "2",
        "3",
        "0",
        "-1",
        "9" * 25,
        "2**62",
        "k**2",
        "2**k",
        "k%3",
        "True",
        "1.5",
        "٣",
        "min(k, 3)",
        "",
    ]

    def expression(depth: int) -> str:
        if not depth:
            return draw.choice(terms)
        left, right = expression(depth - 1), expression(draw.randrange(depth))
        return f"{left}{draw.choice(['+', '+', '*', '-', '//', '%', '**', '/', '<<'])}{right}"

    for _ in range(3000):
        numbers = [draw.choice([str(draw.randint(1, 99)), "0", "007", "1_000", "9" * 40, "²"]) for _ in range(2)]
        sources = [f"stride:k+{expression(draw.randint(0, 2))}", f"offsets:{','.join(numbers)}", "fenwick", "dense"]
        first = draw.choice([*sources, f"local:{numbers[0]}", f"binomial:{numbers[0]}", "exponential"])
        text = first + draw.choice(["", "", "+cache", "+diagonal", "+attention", "+Cache", "/order:2", "/"])
        try:
            p = rv.pattern(text)
            p.sources(200)
        except PatternError:
            continue
        read += 1
        assert rv.pattern(p.spelling) == p, text
        for i in (0, 1, 5, 37):
            sources = p.sources(i).tolist()
            assert sources == sorted(set(sources)), text
            assert all(0 <= j < i and p.allows(i, j) for j in sources), text
            assert p.reads(i) == len(sources), text
    assert read > 500


def test_powers_of_minus_one_never_grow() -> None:
    p = rv.pattern("stride:3*k+1+(1+(-1)**k)//2")
    assert len(p.offsets(12_000)) == 4000
    assert rv.pattern("stride:3*k+1+(1+(-1)**k)//2+cache").slots(64) > 0


def test_other_bad_things() -> None:
    with pytest.raises(rv.PatternError, match="got int"):
        rv.pattern(3)
    with pytest.raises(rv.PatternError, match=r"integers.*gave 0\.5 at k=1"):
        rv.strided(lambda k: k / 2 if k else 1)
    with pytest.raises(rv.PatternError, match="pass the function itself"):
        rv.pattern(str(rv.strided(lambda k: k + 1)))
    with pytest.raises(rv.PatternError, match="at least one offset"):
        rv.strided([])
    p = rv.exponential()
    for bad in (-1, 1.5, True, "3", np.array(2), np.array(2.7)):
        with pytest.raises(rv.PatternError, match="0-based position"):
            p.sources(bad)
    for bad in (-4, 0, 2.0):
        with pytest.raises(rv.PatternError, match="expected an integer ≥ 1"):
            p.mask(bad)
    with pytest.raises(rv.PatternError, match=r"n ≤ 32,768, got 1,000,000.*sources"):
        p.mask(1_000_000)
    with pytest.raises(rv.PatternError, match=r"beyond any sequence: expected at most 2\*\*62"):
        p.sources(10**30)
    with pytest.raises(rv.PatternError, match="more than 16,777,216 strides"):
        rv.pattern("stride:2*k+1").sources(10**12)
    with pytest.raises(rv.PatternError, match="at most 20,000,000 tokens, got 1,000,000,000,000"):
        rv.analyze("first-order", 10**12)
    with pytest.raises(rv.PatternError, match="'reads', 'a' or 'b'"):
        p.mask(4, "c")
    for q in (p, p.cache_efficient(), rv.pattern("dense")):
        assert not q.allows([3, 0, 0], [-1, 0, 2]).any()
        with pytest.raises(rv.PatternError, match="expected integers, got an array of float64"):
            q.allows(3.7, 2)


def test_late_failure_says_where() -> None:
    """A sequence that goes wrong only far out is caught when it gets there."""
    p = rv.strided(lambda k: k + 1 if k < 3000 else 5)
    assert p.reads(40) == 40
    with pytest.raises(rv.PatternError, match=r"f\(3000\) > f\(2999\), got 5 after 3000"):
        p.sources(5000)
