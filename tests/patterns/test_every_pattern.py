"""Laws of all patterns: rows, lives and slots against what follows from the rows alone."""

import copy
import pickle

import numpy as np
import pytest

import resolvent as rv
from resolvent.patterns import FAMILIES, Stage
from tests.general_patterns import cases

RANDOM = np.tril(np.random.default_rng(0).random((70, 70)) < 0.1, -1)
TABLES = {
    "random table": rv.explicit(RANDOM),
    "sparse table": rv.explicit(lambda i: [i // 3] if i % 7 == 1 else [], n=64),
    "function": rv.explicit(lambda i: range(i % 5) if i > 9 else ()),
    "pair of tables": rv.pair(rv.explicit(RANDOM), rv.explicit(RANDOM[:64, :64].T[::-1, ::-1].copy())),
}
SPELLED = [
    *(family.sample for family in FAMILIES.values() if family.name != "explicit"),
    *rv.PAPER_STRUCTURES,
    "stride:max(k,1)*k+1",
    "offsets:1,4,9+cache",
    "dense+cache",
    "exponential+attention+cache",
    "quadratic+diagonal",
    "binomial:5,lazy",
    "bigbird:1,0,2,5+attention",
    "sparse-transformer:5+cache",
    "two-hop+diagonal",
    "attention/first-order",
    "local:8/exponential+cache",
    "dense/exponential",
    "exponential/order:8",
    "fenwick/two-hop",
    "bigbird:2,1,1/binomial:4",
]
PATTERNS = TABLES | {spec: rv.pattern(spec) for spec in SPELLED}
N = 64
STAGES: dict[str, Stage] = {name: p for name, p in PATTERNS.items() if isinstance(p, Stage)} | {
    f"{name}, {number}": stage for name, case in cases(N).items() for number, stage in enumerate(case.pattern.stages)
}


@pytest.mark.parametrize("p", PATTERNS.values(), ids=PATTERNS)
def test_rows(p: rv.Pattern) -> None:
    rows = [p.sources(i).tolist() for i in range(N)]
    for i, row in enumerate(rows):
        assert row == sorted(set(row))
        assert all(0 <= j < i for j in row)
        assert p.reads(i) == len(row)
    mask = p.mask(N)
    if isinstance(p, Stage):
        assert [[j for j in row.tolist() if j >= 0][::-1] for row in p.table(N)] == rows
        assert p.table(N).shape == (N, max(map(len, rows)))
    assert [np.flatnonzero(row).tolist() for row in mask] == rows
    i, j = np.indices((N, N))
    assert np.array_equal(p.allows(i, j), mask)
    for n in (1, 2, 3, 37, N):
        assert p.total_reads(n) == sum(map(len, rows[:n]))
        assert p.widest_row(n) == max(map(len, rows[:n]))


@pytest.mark.parametrize("p", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("n", [1, 2, 37, N])
def test_lives_end_with_the_last_reader(p: rv.Pattern, n: int) -> None:
    mask, lives = p.mask(n), p.lives(n)
    assert lives.shape == (n,)
    for j in range(n):
        readers = np.flatnonzero(mask[:, j])
        last = readers[-1] if len(readers) else j
        assert last - j <= lives[j] <= n
    counts = [sum(lives[j] >= i - j for j in range(i) if lives[j]) for i in range(n)]
    assert p.occupancy(n).tolist() == counts


@pytest.mark.parametrize("p", PATTERNS.values(), ids=PATTERNS)
def test_nonzeros_and_parts(p: rv.Pattern) -> None:
    a, b = p.mask(N, "a"), p.mask(N, "b")
    assert p.nonzeros(N) == (a.sum(), b.sum())
    assert a.diagonal().all()
    assert not b.diagonal().any()
    assert np.array_equal((a | b) & ~np.eye(N, dtype=np.bool_), p.mask(N))
    assert a.sum() == N or np.array_equal(a & ~np.eye(N, dtype=np.bool_), p.stages[0].mask(N))
    assert not b.any() or np.array_equal(b, p.stages[-1].mask(N))


@pytest.mark.parametrize("p", STAGES.values(), ids=STAGES)
def test_a_slot_holds_its_position_while_it_is_read(p: Stage) -> None:
    """A cache as decoders have it: each position is written into its slot, and found there when it is read."""
    slots, held = p.slots(N), {}
    assert slots <= N - 1
    for i in range(N):
        for j in p.sources(i).tolist():
            assert held[p.slot(j)] == j
            assert j + p.life(j) >= i
        if 0 <= p.slot(i) < slots:
            held[p.slot(i)] = i
    positions = np.arange(N)
    assert p.slots_of(positions).tolist() == [p.slot(int(j)) for j in positions]
    assert (p.last_readers(positions) >= positions).all()
    rows = [set(p.sources(i).tolist()) for i in range(N)]
    for i in range(N):
        still_read, kept = {j for row in rows[i:] for j in row if j < i}, set(p.held(i).tolist())
        assert still_read <= kept
        assert still_read == kept or p.limit is None or p.limit > N
        assert all(p.last_readers(np.array([j]))[0] >= i for j in kept)
        assert len(kept) <= slots


@pytest.mark.parametrize("p", PATTERNS.values(), ids=PATTERNS)
def test_values(p: rv.Pattern) -> None:
    """Equal, hashed and copied by content; restored from the spelling, if it has one."""
    again = copy.deepcopy(p)
    assert again == p
    assert hash(again) == hash(p)
    assert copy.copy(p) == p
    assert len({p, again}) == 1
    if p.has_spelling:
        assert pickle.loads(pickle.dumps(p)) == p
        restored = rv.pattern(p.spelling)
        assert restored == p
        assert restored.spelling == p.spelling
        assert rv.pattern(p) is p
        if str(p) == p.spelling:
            assert eval(repr(p), {"pattern": rv.pattern}) == rv.pattern(repr(p)) == p  # a repr is an expression
        assert hash(restored) == hash(p)
        assert len(p.label) < 60
        assert str(p) == p.label
    with pytest.raises(AttributeError):
        p.direct = "all"  # type: ignore[misc]


def test_all_are_different() -> None:
    assert len(set(PATTERNS.values())) == len(set(SPELLED)) + len(TABLES)
    assert len({p.spelling for p in PATTERNS.values()}) == len(set(SPELLED)) + len(TABLES)


@pytest.mark.parametrize("p", PATTERNS.values(), ids=PATTERNS)
def test_drawings_tell_a_from_b(p: rv.Pattern) -> None:
    title, *lines = p.draw(12).splitlines()
    assert title.startswith(f"{p}, 12 tokens: ")
    a, b = p.mask(12, "a"), p.mask(12, "b")
    for i, line in enumerate(lines):
        cells = line.split(" ")
        assert len(cells) == i + 1
        for j, cell in enumerate(cells):
            assert cell == {(1, 1): "■", (1, 0): "□", (0, 1): "◆", (0, 0): "·"}[a[i, j], b[i, j]]
            assert cell in title
