"""Recursion = lattice form = lifetime form, and the static slots hold what is read."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

import resolvent as rv
from resolvent.patterns import Pattern
from tests.oracles import STRIDES, cache_efficient_sets, increasing, strides_below

N = 300


def check_all_forms(p: Pattern, sets: list[set[int]]) -> None:
    """Every way to ask the pattern gives the sets of the recursion."""
    n = len(sets)
    everyone = np.arange(n)
    lives = p.lives(n)
    for i, expected in enumerate(sets):
        sources = p.sources(i).tolist()
        assert sources == sorted(expected)
        assert p.reads(i) == len(expected)
        assert np.flatnonzero(p.allows(i, everyone)).tolist() == sources
        by_life = [j for j in range(i) if i - j <= p.life(j)]
        assert by_life == sources
        assert np.flatnonzero((everyone < i) & (i - everyone <= lives)).tolist() == sources


def check_slots(p: Pattern, n: int) -> None:
    """Decode n tokens: every read finds its position in its slot, no slot lies outside, one write per token."""
    held: dict[int, int] = {}
    for i in range(n):
        sources = p.sources(i).tolist()
        assert [held.get(p.slot(j)) for j in sources] == sources
        alive = sorted(j for j in held.values() if 0 < i - j <= p.life(j))
        assert alive == sources  # reading by lifetime, as a decoder does, finds just the sources
        slot = p.slot(i)
        if slot < 0:
            assert p.life(i) == 0
            continue
        held[slot] = i
        if i < n - 1:  # the last token is never read within n
            assert slot < p.slots(n)
    assert p.slots(n) >= max(p.reads(i) for i in range(n))


@pytest.mark.parametrize("text", STRIDES)
def test_families(text: str) -> None:
    p = rv.pattern(f"stride:{text}+cache")
    check_all_forms(p, cache_efficient_sets(strides_below(STRIDES[text], N), N))
    check_slots(p, N)


@given(increasing)
@settings(max_examples=60, deadline=None)
def test_random_lists(values: list[int]) -> None:
    p = rv.strided(values).cache_efficient()
    check_all_forms(p, cache_efficient_sets(values, 120))
    check_slots(p, 120)


def test_period_is_the_last_step_and_no_less() -> None:
    """With the levels of n tokens, shifting by the period changes nothing, and no smaller shift does that."""
    for n in [40, 200]:
        for text in ["2**k", "k**2+1", "k**3+1", "3*k+2", "k**2+5", "10*k+(k%3)*3+1"]:
            strides = strides_below(STRIDES[text], n)
            period = rv.pattern(f"stride:{text}+cache").period(n)
            sets = cache_efficient_sets(strides, 3 * n + 3 * period)
            settled = range(2 * n, 2 * n + 2 * period)

            repeats = [
                all({j + shift for j in sets[i]} == sets[i + shift] for i in settled) for shift in range(1, period + 1)
            ]
            assert repeats.index(True) == period - 1


def test_exponential_is_a_fenwick_tree() -> None:
    p = rv.pattern("exponential+cache")
    for i in range(1, 2000):  # 1-based, as the closed forms are written
        lowbit = i & -i
        assert p.life(i - 1) == 2 * lowbit
        assert p.slot(i - 1) == lowbit.bit_length() - 1
        assert p.reads(i - 1) == math.ceil(math.log2(i))


def test_quadratic_slots_stay_close_to_the_rows() -> None:
    for n, slots in [(16, 5), (64, 8), (128, 11), (256, 15), (1024, 27), (4096, 51)]:
        p = rv.pattern("quadratic+cache")
        assert p.slots(n) == slots
        assert max(p.reads(i) for i in range(n)) <= slots <= max(p.reads(i) for i in range(n)) + 3


def test_quadratic_levels_coincide() -> None:
    """About a quarter of the levels repeat a position; a gather by level would count it twice."""
    p = rv.pattern("quadratic+cache")
    rows = np.arange(30_000, 66_000, 17)
    levels = np.array([len(p.offsets(i + 1)) for i in rows])
    distinct = np.array([p.reads(i) for i in rows])
    assert 0.22 < 1 - distinct.mean() / levels.mean() < 0.30
    ratio = distinct / np.sqrt(rows + 1)
    assert 0.70 < ratio.min() < ratio.max() < 0.77


def test_slots_do_not_move_as_the_sequence_grows() -> None:
    """One numbering for all lengths: the first n tokens fill the first slots(n), so a cache grows by appending."""
    for spec in ("exponential+cache", "quadratic+cache", "stride:k**3+1+cache", "stride:3*k+2+cache"):
        p = rv.pattern(spec)
        seen = -1
        for n in range(2, 600):
            slot = p.slot(n - 2)
            assert slot <= seen + 1
            seen = max(seen, slot)
            assert p.slots(n) == seen + 1


def test_contiguous_patterns_are_their_own_cache_efficient_version() -> None:
    for spec in ("dense", "order:5", "local:4", "first-order", "attention"):
        p = rv.pattern(spec)
        q = p.cache_efficient()
        assert str(q) == f"{spec}+cache"
        for i in range(40):
            assert p.sources(i).tolist() == q.sources(i).tolist()
            assert (p.life(i), p.slot(i)) == (q.life(i), q.slot(i))
        assert (p.slots(40), p.period(40)) == (q.slots(40), q.period(40))


def test_cache_efficient_twice_is_once() -> None:
    p = rv.pattern("quadratic+cache")
    assert p.cache_efficient() is p


def test_the_cache_is_at_most_three_levels_worth() -> None:
    for text in [*STRIDES, "k**4+1", "5**k"]:
        p = rv.pattern(f"stride:{text}+cache")
        for n in (2, 3, 10, 50, 333, 2000):
            assert p.slots(n) <= 3 * (len(p.offsets(n)) + 1)


@pytest.mark.parametrize("spec", ["quadratic+cache", "stride:k+1+max(0,k-70000)+cache", "stride:2*k+1+cache"])
def test_answers_do_not_depend_on_what_was_asked_before(spec: str) -> None:
    """Lattices grow as far as a question needs; a fresh pattern must agree with a seasoned one."""
    questions = [68_001, 449_999, 393_215, 17, 200_000, 1]
    seasoned = rv.pattern(spec)
    for j in questions:
        fresh = rv.pattern(spec)
        assert (seasoned.life(j), seasoned.slot(j), seasoned.slots(j)) == (fresh.life(j), fresh.slot(j), fresh.slots(j))
        for later in (100_000, 150_000):
            if j < later:
                assert bool(fresh.allows(later, j)) == (later - j <= fresh.life(j))


def test_long_runs_of_equal_steps_are_not_taken_for_endless() -> None:
    """k²+1 has 98,304 levels of step 393,216 in a row, and still that class dies."""
    p = rv.pattern("quadratic+cache")
    assert p.life(449_999) < math.inf
    assert p.life(393_215) == 196_608**2 + 1


def test_period_before_the_first_stride() -> None:
    assert rv.pattern("stride:k**2+5+cache").period(5) == 1
    assert rv.pattern("stride:k**2+5+cache").period(6) == 5


def test_positions_held_for_ever() -> None:
    """A linear stride stops rounding: even positions (1-based) are never dropped."""
    p = rv.pattern("stride:2*k+1+cache")
    assert p.life(1) == math.inf
    assert p.life(0) == 1
    assert rv.pattern("dense+cache").life(5) == math.inf
