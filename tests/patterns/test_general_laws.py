"""What every pattern promises: rows, lifetimes and slots, by simulation, for pairs, tables and lifetimes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rv
from resolvent.patterns import Explicit, Lifetimes, Stage
from tests.general_patterns import NAMES, Case, cases, explicit
from tests.oracles import Rows, random_rows

N = 120
CASES = cases(N)


def decode(stage: Stage, n: int) -> None:
    """Write each position to its slot; whatever a token reads must still be there, and no slot may be too many."""
    held: dict[int, int] = {}
    for i in range(n):
        for j in stage.sources(i).tolist():
            assert held.get(stage.slot(j)) == j, (i, j)
        if i < n - 1 and stage.slot(i) >= 0:
            assert stage.slot(i) < stage.slots(n)
            held[stage.slot(i)] = i
    assert stage.slots_of(np.arange(n)).tolist() == [stage.slot(j) for j in range(n)]


def most_alive(rows: Rows, n: int) -> int:
    """The most positions at any of the first n tokens that are read then or later."""
    last = [max([i for i, row in enumerate(rows) if j in row], default=j) for j in range(len(rows))]
    return max(sum(last[j] >= i for j in range(i)) for i in range(n))


@given(st.integers(1, 40), st.floats(0.2, 6), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40, deadline=None)
def test_tables_take_as_few_slots_as_there_can_be(n: int, reads: float, seed: int, chain: bool) -> None:
    rows = random_rows(n, reads, seed, chain=chain)
    p = explicit(rows)
    for m in {1, n // 2 + 1, n}:
        assert p.slots(m) == most_alive(rows, m)
        decode(p, m)
    assert p.occupancy(n).max() == p.slots(n)


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_counts(name: str) -> None:
    case = CASES[name]
    p, rows = case.pattern, case.rows
    a = [row | {i} for i, row in enumerate(case.later if case.first is None else case.first)]
    for i, row in enumerate(rows):
        assert p.sources(i).tolist() == sorted(row)
        assert p.reads(i) == len(row)
    for n in (1, 2, N // 2, N):
        assert p.total_reads(n) == sum(map(len, rows[:n]))
        assert p.widest_row(n) == max(map(len, rows[:n]))
        assert p.nonzeros(n) == (sum(map(len, a[:n])), sum(map(len, case.later[:n])))
        for part, expected in (("reads", rows), ("a", a), ("b", case.later)):
            assert [set(np.flatnonzero(row).tolist()) for row in p.mask(n, part)] == expected[:n]
    i, j = np.indices((N, N))
    assert np.array_equal(p.allows(i, j), p.mask(N))
    assert not p.allows([5, 5, 5], [5, 6, -1]).any()


@pytest.mark.parametrize("name", NAMES)
def test_lives_end_with_the_last_reader(name: str) -> None:
    case = CASES[name]
    for n in (1, 2, N // 2, N):
        lives, rows = case.pattern.lives(n), case.rows[:n]
        last = [max([i for i, row in enumerate(rows) if j in row], default=j) for j in range(n)]
        seen = np.minimum(np.arange(n) + lives, n - 1)
        assert np.all(seen >= last)  # a position may be held for tokens beyond these
        if n == N and "exponential/order" not in name:
            assert seen.tolist() == last
        held = [sum(0 < i - j <= lives[j] for j in range(i)) for i in range(n)]
        assert case.pattern.occupancy(n).tolist() == held


@pytest.mark.parametrize("name", NAMES)
def test_without_feedback_and_with_a_diagonal(name: str) -> None:
    case: Case = CASES[name]
    diagonal = case.pattern.with_diagonal_a()
    assert diagonal.nonzeros(N) == (N, sum(map(len, case.later)))
    if isinstance(case.pattern, Explicit | Lifetimes):
        attention = rv.pair(case.pattern, "attention")
        assert attention.nonzeros(N) == (N + sum(map(len, case.later)), 0)
        assert rv.pair("first-order", case.pattern) == diagonal
