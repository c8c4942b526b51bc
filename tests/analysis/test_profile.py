"""The profile: every figure against counting, for all nine structures; growth and cost."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import resolvent as rv
from resolvent.analysis import cost, growth, kernels, reach_kernels
from resolvent.analysis.growth import growth_class
from resolvent.errors import SettingError
from resolvent.patterns.strides import Integers
from tests.counting import lines
from tests.processes import run

ROOT = Path(__file__).parents[2]


def test_figures_are_counts() -> None:
    for n in [1, 2, 16, 256]:
        for spec in rv.PAPER_STRUCTURES:
            p, profile = rv.pattern(spec), rv.analyze(spec, n)
            assert profile.nnz_a == p.mask(n, "a").sum()
            assert profile.nnz_b == p.mask(n, "b").sum()
            rows = p.mask(n).sum(axis=1)
            assert profile.reads_per_token.max == rows.max() == p.widest_row(n)
            assert profile.reads_per_token.mean == pytest.approx(rows.mean(), rel=1e-12)
            used = {p.slot(j) for j in range(n - 1)} - {-1}
            assert used == set(range(profile.cache_slots))


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_json(spec: str) -> None:
    content = json.loads(rv.analyze(spec, 128).to_json())
    assert (content["pattern"], content["n"]) == (spec, 128)
    assert float(content["congestion"]["lower"]) <= float(content["congestion"]["upper"])


TABLE_ONE = {  # reads, slots, hops (None: some pairs have no path), congestion; as docs/theory.md prints them
    "attention": (1023, 1023, 1, 1),
    "local:8": (7, 7, None, math.inf),
    "first-order": (1, 1, 1023, 1024),
    "order:8": (8, 8, 128, 128),
    "dense": (1023, 1023, 1, 1),
    "exponential": (10, 1023, 10, 1),
    "exponential+cache": (10, 10, 10, 103),
    "quadratic": (32, 1023, 4, 3),
    "quadratic+cache": (25, 27, 6, 47),
}


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_table_one(spec: str) -> None:
    profile = rv.analyze(spec, 1024)
    hops = None if profile.unreachable_pairs else profile.max_hops
    assert profile.congestion.exact
    found = (profile.reads_per_token.max, profile.cache_slots, hops, profile.congestion.lower)
    assert found == TABLE_ONE[spec]


LAWS = {
    "attention": ("O(n)", "O(n)", "O(1)", "O(1)"),
    "local:8": ("O(1)", "O(1)", "infinite", "infinite"),
    "first-order": ("O(1)", "O(1)", "O(n)", "O(n)"),
    "order:8": ("O(1)", "O(1)", "O(n)", "O(n)"),
    "dense": ("O(n)", "O(n)", "O(1)", "O(1)"),
    "exponential": ("O(log n)", "O(n)", "O(log n)", "O(log n)"),
    "exponential+cache": ("O(log n)", "O(log n)", "O(log n)", "O(n / log n)"),
    "quadratic": ("O(√n)", "O(n)", "O(1)", "O(1)"),
    "quadratic+cache": ("O(√n)", "O(√n)", "O(log log n)", "O(√n)"),
    "stride:k**3+1": ("O(∛n)", "O(n)", "O(1)", "O(1)"),
    "stride:5*k+1+cache": ("O(n)", "O(n)", "O(1)", "O(1)"),
    "offsets:1,4,9": ("O(1)", "O(1)", "O(n)", "O(n)"),
    "stride:k**3+1+cache": ("O(∛n)", "O(∛n)", "O(log log n)", "O(n^(2/3))"),
    "stride:k**5+1+cache": ("O(n^(1/5))", "O(n^(1/5))", "O(log log n)", "O(n^(4/5))"),
    "stride:2**k+300": ("O(log n)", "O(n)", "infinite", "infinite"),
    "stride:3**k": ("O(log n)", "O(n)", "O(log n)", "O(log n)"),
    "stride:k**4+1": ("O(n^(1/4))", "O(n)", "O(1)", "O(1)"),
    "stride:2**2**k": ("O(log log n)", "O(n)", "infinite", "infinite"),
    "stride:k+1000": ("O(n)", "O(n)", "infinite", "infinite"),
}


@pytest.mark.parametrize("spec", LAWS)
def test_growth_is_read_off_the_numbers(spec: str) -> None:
    law = growth(rv.pattern(spec))
    assert (law.reads_per_token, law.cache_slots, law.max_hops, law.congestion) == LAWS[spec]


def test_growth_class() -> None:
    for name, law in [
        ("O(1)", lambda _: 5),
        ("O(log log n)", lambda n: 3 + 4 * math.log2(math.log2(n))),
        ("O(log n)", lambda n: 2 * math.log2(n) - 3),
        ("O(√n)", lambda n: 0.7 * n**0.5 + 2),
        ("O(n^(3/4))", lambda n: n**0.75),
        ("O(n / log n)", lambda n: n / math.log2(n)),
        ("O(n)", lambda n: n / 8 + 1),
        ("infinite", lambda n: math.inf if n > 1000 else 1),
    ]:
        sizes = [2**t for t in range(8, 20)]
        values = [law(n) for n in sizes]
        assert growth_class(sizes, values) == name
        if name != "infinite":
            assert growth_class(sizes, [round(value) for value in values]) == name  # as integers, too


def test_growth_class_needs_enough_sizes() -> None:
    with pytest.raises(ValueError, match="at least four sizes"):
        growth_class([1, 2, 4], [1, 2, 3])


def test_cost_by_counting() -> None:
    """Walk the rows and count the products of length D that a layer would make."""
    for spec in rv.PAPER_STRUCTURES:
        p, n, heads, dim = rv.pattern(spec), 50, 3, 8
        entries = 0
        for i in range(n):
            entries += 1 + (p.reads(i) if p.direct == "all" else 0) + (p.reads(i) if p.recurrent else 0)
        c = cost(p, n, heads=heads, head_dim=dim)
        assert c.forward_madds_per_token == pytest.approx(entries * 2 * heads * dim / n)
        assert c.training_madds_per_token == pytest.approx(entries * 7 * heads * dim / n)
        vectors = {"first-order": 1, "attention": 2, "local:8": 2}.get(
            spec, 4
        )  # x and k_a, y and k_b; one entry: no key
        assert c.cache_bytes == p.slots(n) * vectors * heads * dim * 4
        reads = sum(p.reads(i) for i in range(n)) / n
        assert c.decode_bytes_read_per_token == pytest.approx(reads * vectors * heads * dim * 4)
        last = 1 + (p.reads(n - 1) if p.direct == "all" else 0) + (p.reads(n - 1) if p.recurrent else 0)
        assert c.decode_madds_last_token == 2 * heads * dim * last
        # Kept for the backward pass: x, y and a query, a key and two numbers of a softmax per side, and the gate.
        sides = {"first-order": 0, "attention": 1, "local:8": 1}.get(spec, 2)
        assert c.training_bytes_per_token == 4 * heads * (2 * dim + sides * (2 * dim + 2) + p.recurrent)


def test_cost_scales_with_the_layer() -> None:
    small = cost(rv.quadratic(), 100, heads=2, head_dim=16, item_bytes=2)
    large = cost(rv.quadratic(), 100, heads=4, head_dim=32, item_bytes=4)
    assert large.forward_madds_per_token == 4 * small.forward_madds_per_token
    assert large.cache_bytes == 8 * small.cache_bytes
    with pytest.raises(SettingError, match="heads to be an integer ≥ 1, got 0"):
        cost(rv.quadratic(), 100, heads=0)


def test_a_pattern_that_reads_nothing_costs_no_cache() -> None:
    assert cost(rv.pattern("local:1"), 100).cache_bytes == 0
    assert rv.analyze("local:1", 10).max_hops == 0


def test_a_million_tokens() -> None:
    """In a process of its own: under 1 GiB, from the import on and one after another, and loops over tokens only.

    Loops are counted by the calls within them, on fewer tokens, since to count takes longer than to run.
    """
    specs = ["attention", "exponential", "first-order", "quadratic+cache"]  # of each way to compute them one
    code = f"""
import resolvent
from pathlib import Path
from tests.counting import calls
for spec in {specs}:
    resolvent.analyze(spec, 1024, effort="quick")  # loads the kernels, and fits the growth
    print(calls(lambda: resolvent.analyze(spec, 100_000, effort="quick")))
    profile = resolvent.analyze(spec, 1_000_000, effort="quick")
    assert profile.congestion.lower <= profile.congestion.upper, spec
status = Path("/proc/self/status")  # the peak of getrusage would be that of the process that started this one
said = status.read_text().splitlines() if status.exists() else []
print(*(line.split()[1] for line in said if line.startswith("VmHWM")))
"""
    done = run("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    numbers = [int(word) for word in done.stdout.split()]
    for spec, entered in zip(specs, numbers, strict=False):
        assert entered < 20 * 100_000, spec
    assert len(numbers) >= len(specs)
    assert all(held < 1 << 20 for held in numbers[len(specs) :])  # none where the system does not say


def grown(kernel: Any, arguments: Callable[[int], tuple[Any, ...]]) -> float:
    """How many times more lines of its source a kernel executes for eight times as many tokens."""
    counted = [lines(lambda n=n: kernel.py_func(*arguments(n))) for n in (512, 4096)]
    return counted[1] / counted[0]


@pytest.mark.parametrize("spec", ["first-order", "order:8", "exponential", "stride:3**k"])
def test_distances_take_time_in_proportion(spec: str) -> None:
    p = rv.pattern(spec)
    assert (
        grown(kernels.coin_change, lambda n: (p.offsets(n), p.offsets(n), np.full(n, -1)))
        < 8 * math.log(4096) / math.log(512) * 1.2
    )


def test_distances_of_quadratic_strides_end_early() -> None:
    """Two strides are enough for many distances, so that few of √n are tried."""
    offsets = rv.quadratic().offsets
    assert grown(kernels.coin_change, lambda n: (offsets(n), offsets(n), np.full(n, -1))) < 8**1.6


@pytest.mark.parametrize("spec", ["exponential+cache", "quadratic+cache", "first-order", "order:8"])
def test_lives_take_time_in_proportion(spec: str) -> None:
    p = rv.pattern(spec)
    assert grown(kernels.next_longer, lambda n: (p.lives(n),)) < 12

    def reaches(n: int) -> Integers:
        return np.minimum(np.arange(n) + p.lives(n), n - 1)

    def reaches_and_relays(n: int) -> tuple[Integers, ...]:
        return reaches(n), reach_kernels.farthest_within(reaches(n), reaches(n)), *np.empty((3, n), dtype=np.int64)

    assert grown(reach_kernels.find_farthest, lambda n: (reaches(n), reaches(n), *np.empty((2, n), np.int64))) < 12
    assert grown(kernels.interval_hops, reaches_and_relays) < 12


@given(st.integers(1, 2000), st.lists(st.integers(1, 400), max_size=5), st.booleans())
@settings(max_examples=30, deadline=None)
def test_any_list_has_a_profile(first: int, gaps: list[int], cache: bool) -> None:
    p = rv.strided(np.cumsum([first, *gaps]).tolist())
    profile = rv.analyze(p.cache_efficient() if cache else p, 20, effort="quick")
    assert profile.congestion.lower <= profile.congestion.upper
    assert json.loads(profile.to_json())["n"] == 20


def test_lengths_as_text() -> None:
    """Every question about a pattern takes "4k" for 4,096."""
    profile = rv.analyze("order:8", "4k")
    assert (profile.n, profile.max_hops) == (4096, 512)
    assert profile.to_dict() == rv.analyze("order:8", 4096).to_dict()
    assert rv.hops("order:8", "1M").max == 131_072
    p = rv.pattern("exponential+cache")
    for method in ("slots", "period", "nonzeros", "total_reads", "widest_row"):
        assert getattr(p, method)("4k") == getattr(p, method)(4096)
    for method in ("lives", "offsets", "occupancy", "mask", "table"):
        assert np.array_equal(getattr(p, method)("1k"), getattr(p, method)(1024))
    assert p.draw("1k") == p.draw(1024)
