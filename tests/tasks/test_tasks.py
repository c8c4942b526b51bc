"""Tasks: solvable by a program, scored where they should be, from the seed alone, and without leaks."""

from collections.abc import Callable

import numpy as np
import pytest

from resolvent.tasks import IGNORED, TASKS, Batch, Copy, MultiHop, Recall, Synthetic, TaskError, Text, task

ALL: list[Synthetic] = [
    Copy(vocab_size=20, length=9, least=1),
    Copy(),
    Recall(vocab_size=40, pairs=7, length=21),
    Recall(vocab_size=64, pairs=12, length=48),
    Recall(),
    Recall(vocab_size=48, pairs=8, length=40, placement="scattered"),
    Recall(vocab_size=16, pairs=7, length=28, repeats=True),
    MultiHop(vocab_size=40, pairs=8, length=40),
    MultiHop(chance=1.0, vocab_size=64, pairs=12, length=48),
    MultiHop(),
    MultiHop(vocab_size=48, pairs=8, length=40, chains="literal", placement="scattered"),
]
each = pytest.mark.parametrize("t", ALL, ids=lambda t: f"{t.name}-{t.vocab_size}")


@each
def test_oracle_is_always_right(t: Synthetic) -> None:
    """And masks are where the answers are: shifted by one they would not fit."""
    for index in range(20):
        batch = t.batch(3, index, 16)
        answers = t.solve(batch.tokens)
        scored = batch.targets != IGNORED
        assert scored.any(1).all()
        assert np.array_equal(answers[scored], batch.targets[scored])
    batch = t.batch(0, 1, 32, size=t.sizes(1)[1])
    answers = t.solve(batch.tokens)
    for shift in (-1, 1):
        moved = np.roll(batch.targets, shift, 1)
        scored = moved != IGNORED
        assert (answers[scored] == moved[scored]).mean() < 0.5


@each
def test_same_numbers_same_batch(t: Synthetic) -> None:
    first = [t.batch(7, index, 8) for index in range(4)]
    again = [t.batch(7, index, 8) for index in reversed(range(4))][::-1]
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.targets, b.targets)
    assert any(a.tokens.shape != b.tokens.shape for a in first for b in first)
    other = t.batch(8, 0, 8)
    assert first[0].tokens.shape != other.tokens.shape or not np.array_equal(first[0].tokens, other.tokens)


def size_of(t: Synthetic, batch: Batch) -> int:
    """Symbols or pairs, by the length of the sequences."""
    n = batch.tokens.shape[1]
    return (n - 1) // 2 if isinstance(t, Copy) else int(n * t.pairs / t.length + 0.5)


@each
def test_sizes_and_vocabulary(t: Synthetic) -> None:
    seen = set()
    for index in range(40):
        batch = t.batch(1, index, 4)
        assert batch.tokens.shape[1] <= t.longest
        assert batch.tokens.min() >= 0
        assert batch.tokens.max() < t.vocab_size
        seen.add(size_of(t, batch))
    assert seen <= set(range(t.sizes(1)[0], t.sizes(1)[1] + 1))
    assert len(seen) > 3
    assert t.sizes(8)[1] == max(t.sizes(1)[1] // 8, 1)
    assert t.batch(0, 0, 2, size=t.sizes(1)[1]).tokens.shape[1] == t.longest


@each
def test_no_leak_into_shuffled_inputs(t: Synthetic) -> None:
    """Position by position, no token tells the answer: the best guess from what stands at any one place is chance."""
    batch = t.batch(0, 0, 4000, size=min(12, t.sizes(1)[1]))
    scored = batch.targets != IGNORED
    for column in np.flatnonzero(scored.any(0)):
        rows = scored[:, column]
        if rows.sum() < 500:
            continue
        targets = batch.targets[rows, column]
        for other in range(column + 1):
            agree = (batch.tokens[rows, other] == targets).mean()
            if not (t.name == "copy" and other == column - (batch.tokens.shape[1] - 1) // 2):
                assert agree < 0.45, (column, other)


def test_recall_at_random_places() -> None:
    """The way back to the value takes many lengths, so no stride finds it."""
    t = Recall(vocab_size=64, pairs=12, length=48)
    batch = t.batch(0, 0, 500, size=12)
    distance = batch.slices["distance"]
    rows, columns = np.nonzero(distance != IGNORED)
    assert np.array_equal(batch.tokens[rows, columns - distance[rows, columns]], batch.targets[rows, columns])
    counts = np.bincount(distance[rows, columns])
    assert counts.max() < 0.08 * counts.sum()


def test_hops_are_counted() -> None:
    t = MultiHop(vocab_size=64, pairs=12, length=48)
    batch, half = t.batch(0, 0, 200, size=12), 32
    hops = batch.slices["hops"]
    assert np.array_equal(hops != IGNORED, batch.targets != IGNORED)
    for tokens, counted in zip(batch.tokens.tolist(), hops.tolist(), strict=True):
        value_of: dict[int, int] = {}
        i = 0
        while i < len(tokens):
            token = tokens[i]
            if token and token not in value_of:
                value_of[token] = tokens[i + 1]
                steps, key = 0, tokens[i + 1]
                while key < half:
                    steps, key = steps + 1, value_of[key]
                assert counted[i + 1] == (steps or IGNORED)
                i += 2
                continue
            if token:
                steps, key = 1, value_of[token]
                while key < half:
                    steps, key = steps + 1, value_of[key]
                assert counted[i] == steps
            i += 1
    asked = hops[:, 32:][hops[:, 32:] != IGNORED]
    assert (asked == 1).mean() < 0.75
    assert (asked >= 3).mean() > 0.05


def test_guessing_the_first_value_is_poor() -> None:
    t = MultiHop(vocab_size=64, pairs=12, length=48)
    batch = t.batch(0, 0, 500, size=12)
    far = batch.slices["hops"] >= 2
    first = batch.tokens[np.arange(500), (batch.tokens != 0).argmax(1) + 1]
    assert (batch.targets == first[:, None])[far].mean() < 0.25


@pytest.mark.parametrize("spec", ["local:8", "exponential", "exponential+cache"])
def test_what_a_stack_can_see(spec: str) -> None:
    """Copy 16 symbols through two layers: a window has no path from a symbol to where it is asked."""
    from resolvent.model import LanguageModel, ModelConfig

    t = Copy(vocab_size=20, length=16)
    profile = LanguageModel.shape_only(ModelConfig(layers=2, dim=16, heads=2, pattern=spec)).profile(t.longest)
    needed = 16 + 1  # from a symbol to the place that comes before its copy
    assert (profile.reach >= needed) == (spec != "local:8")


@pytest.mark.parametrize(("make", "message"), [
    (lambda: task("copi"), "unknown task 'copi': expected copy, recall, multihop, markov, text. Did you mean 'copy'"),
    (lambda: task("copy", {"lenght": 3}), "unknown setting 'lenght' of copy.*Did you mean 'length'"),
    (lambda: task("copy:lenght=3"), "unknown setting 'lenght' of copy.*Did you mean 'length'"),
    (lambda: task("copy:length"), "expected 'copy' or 'copy:setting=value,…', got 'copy:length'"),
    (lambda: task("copy:length=x"), "expected length to be int, got 'x'|missing a setting or has one of another type"),
    (lambda: task("recall", {"placement": "scatered"}), "expected placement adjacent or scattered, got 'scatered'"),
    (lambda: task("multihop", {"chains": "any"}), "expected chains balanced or literal, got 'any'"),
    (lambda: task("recall", {"repeats": 1}), "expected repeats true or false, got 1"),
    (lambda: Copy(vocab_size=4), "expected vocab_size ≥ 5, got 4"),
    (lambda: Copy(length=3, least=4), "expected 1 ≤ least ≤ length"),
    (lambda: Recall(vocab_size=20, pairs=12), "expected at most 9 pairs for a vocabulary of 20"),
    (lambda: Recall(pairs=12, length=30), "expected length ≥ 36 for 12 pairs, got 30"),
    (lambda: MultiHop(chance=1.5), "expected chance from 0 to 1"),
])  # fmt: skip
def test_impossible_tasks(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make()


def test_settings_make_the_same_task() -> None:
    for t in [*ALL, Text("no/such/folder", 32, tokenizer="bytes", vocab_size=257)]:  # making one reads no file
        settings = t.settings()
        assert task(str(settings.pop("name")), settings) == t
    assert set(TASKS) == {"copy", "recall", "multihop", "markov", "text"}
    assert task("copy:length=9, least=1,vocab_size=20") == Copy(vocab_size=20, length=9, least=1)
    assert task("recall:repeats=true,placement=scattered") == Recall(placement="scattered", repeats=True)
    first, second = Copy(vocab_size=20, length=4, least=4).sample().splitlines()
    assert first.split()[1:5] == second.split()


@each
def test_held_out_batches_are_of_every_size(t: Synthetic) -> None:
    batches = list(t.held_out(0, 2, 5))
    sizes = [size_of(t, batch) for batch in batches]
    assert (sizes[0], sizes[-1]) == t.sizes(1)
    assert sizes == sorted(sizes)
    for batch, size in zip(batches, sizes, strict=True):
        assert set(batch.slices["size"][batch.targets != IGNORED].tolist()) == {size}
    trained = t.batch(0, 0, 2, size=sizes[0])
    assert not np.array_equal(trained.tokens, batches[0].tokens)


# What guessing scores

GUESSED = [Copy(vocab_size=9, length=9, least=1), Recall(vocab_size=40, pairs=9, length=36),
           Recall(vocab_size=16, pairs=7, length=28, repeats=True), MultiHop(vocab_size=40, pairs=12, length=48),
           MultiHop(vocab_size=40, pairs=12, length=48, chains="literal", placement="scattered")]  # fmt: skip


def guess(t: Synthetic, how: str, rng: np.random.Generator, before: list[int], hops: int, answer: int) -> int:
    """Play a guess at one position, from the tokens up to it."""
    if isinstance(t, Copy):
        size = before.index(2) - 1
        shown, ends = before[1 : size + 1], before[1 : size + 1]
        if how == "shortcut":
            for copied in before[size + 2 :]:
                ends = [*ends[: ends.index(copied)], *ends[ends.index(copied) + 1 :]]
    else:
        half, known, key = t.vocab_size // 2, {}, 0
        last = before[-1]
        for token in before[:-1]:
            if token and key:
                known[key], key = (token if token >= half else known[token]), 0
            elif token and token not in known:
                key = token
        shown = [token for token in before[:-1] if token >= half]
        ends = list(known.values())
        if how == "shortcut" and isinstance(t, MultiHop) and hops == 1:
            return known[last]
    if how == "constant":
        return int(
            answer if rng.random() < 1 / (t.vocab_size - (3 if isinstance(t, Copy) else t.vocab_size // 2)) else -1
        )
    if how == "shown":
        return int(rng.choice(shown))
    values, counts = np.unique(ends, return_counts=True)
    return int(rng.choice(values[counts == counts.max()]))


@pytest.mark.parametrize("t", GUESSED, ids=lambda t: f"{t.name}-{t.vocab_size}")
def test_floors_are_what_guessing_scores(t: Synthetic) -> None:
    """Played token by token, by a player that is written apart, a guess is right as often as its floor says."""
    batches = list(t.held_out(3, 24, 6))
    floors = t.floors(batches)
    rng = np.random.default_rng(0)
    for how, floor in floors.items():
        right = []
        for batch in batches:
            for row, i in zip(*np.nonzero(batch.targets != IGNORED), strict=True):
                hops = int(batch.slices["hops"][row, i]) if "hops" in batch.slices else 0
                answer = int(batch.targets[row, i])
                right.append(guess(t, how, rng, batch.tokens[row, : i + 1].tolist(), hops, answer) == answer)
        assert abs(np.mean(right) - floor) < 4 * 0.5 / np.sqrt(len(right)), how
    assert floors["constant"] < floors["shown"] <= floors["commonest"] + 1e-12


def test_values_that_differ_leave_nothing_to_guess() -> None:
    """Drawn with replacement, the commonest of 8 values is right a third of the time; else one in as many as shown."""
    plain, repeated = (Recall(vocab_size=32, pairs=8, length=32, repeats=repeats) for repeats in (False, True))
    sizes = [size_of(plain, batch) for batch in plain.held_out(0, 64, 16)]
    floor = len(sizes) / sum(sizes)  # a share of 1 / size of the `size` queries of each sequence
    assert plain.floors(plain.held_out(0, 64, 16)) == pytest.approx(
        {"constant": 1 / 16, "shown": floor, "commonest": floor, "shortcut": floor}
    )
    assert repeated.floors(repeated.held_out(0, 64, 16))["commonest"] == pytest.approx(0.322, abs=0.01)


# The paper's chains


def test_literal_chains_have_the_statistics_of_their_definition() -> None:
    """Each value is an earlier key with probability one half, nothing else: at 64 pairs, 1.86 hops on average."""
    expected = [1.0]
    for _ in range(63):
        expected.append(1 + 0.5 * sum(expected) / len(expected))
    batches = [MultiHop(chains="literal").batch(0, index, 512, size=64) for index in range(8)]
    queries = [batch.slices["query"] == 1 for batch in batches]
    hops = np.concatenate([b.slices["hops"][q] for b, q in zip(batches, queries, strict=True)])
    assert np.mean(expected) == pytest.approx(1.859, abs=1e-3)
    assert hops.mean() == pytest.approx(np.mean(expected), abs=0.01)
    assert (hops == 1).mean() == pytest.approx(1 - 0.5 * 63 / 64, abs=0.005)
    linked = sum(int((batch.slices["query"] == 0).sum()) for batch in batches) / len(hops)
    assert linked == pytest.approx(0.5 * 63 / 64, abs=0.005)


def test_literal_chains_take_any_earlier_key() -> None:
    """Some key is the value of several others, and the second pair may be linked: neither in balanced chains."""
    several = {}
    for chains in ("literal", "balanced"):
        batch = MultiHop(vocab_size=64, pairs=12, length=48, chains=chains).batch(0, 0, 200, size=12)
        values = np.where(batch.slices["query"] == 0, batch.tokens, -1)
        several[chains] = max(int(np.unique(row[row >= 0], return_counts=True)[1].max(initial=0)) for row in values)
    assert several["balanced"] == 1
    assert several["literal"] > 1


def test_scattered_values_stand_anywhere_after_their_keys() -> None:
    adjacent, scattered = (
        Recall(vocab_size=64, pairs=8, length=48, placement=placement).batch(0, 0, 400, size=8)
        for placement in ("adjacent", "scattered")
    )
    gaps = {}
    for name, batch in (("adjacent", adjacent), ("scattered", scattered)):
        gaps[name] = set()
        for row in batch.tokens:
            at = np.flatnonzero(row)[:16]  # the pairs come first
            assert (row[at[::2]] < 32).all()
            assert (row[at[1::2]] >= 32).all()
            gaps[name] |= set((at[1::2] - at[::2]).tolist())
    assert gaps["adjacent"] == {1}
    assert gaps["scattered"] >= {1, 2, 3, 4, 5}
