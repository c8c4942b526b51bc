"""Tasks: solvable by a program, scored where they should be, from the seed alone, and without leaks."""

import numpy as np
import pytest

import resolvent as rv
from resolvent.tasks import IGNORED, TASKS, Copy, MultiHop, Recall, Task, TaskError, task

ALL: list[Task] = [
    Copy(vocab_size=20, length=9, least=1),
    Copy(),
    Recall(vocab_size=40, pairs=7, length=21),
    Recall(vocab_size=64, pairs=12, length=48),
    Recall(),
    MultiHop(vocab_size=40, pairs=8, length=40),
    MultiHop(chance=1.0, vocab_size=64, pairs=12, length=48),
    MultiHop(),
]
each = pytest.mark.parametrize("t", ALL, ids=lambda t: f"{t.name}-{t.vocab_size}")


@each
def test_oracle_is_always_right(t: Task) -> None:
    for index in range(20):
        batch = t.batch(3, index, 16)
        answers = t.solve(batch.tokens)
        scored = batch.targets != IGNORED
        assert scored.any(1).all()
        assert np.array_equal(answers[scored], batch.targets[scored])


@each
def test_masks_are_where_the_answers_are(t: Task) -> None:
    """Shifted by one they would not fit."""
    batch = t.batch(0, 1, 32, size=t.sizes(1)[1])
    answers = t.solve(batch.tokens)
    for shift in (-1, 1):
        moved = np.roll(batch.targets, shift, 1)
        scored = moved != IGNORED
        assert (answers[scored] == moved[scored]).mean() < 0.5


@each
def test_same_numbers_same_batch(t: Task) -> None:
    first = [t.batch(7, index, 8) for index in range(4)]
    again = [t.batch(7, index, 8) for index in reversed(range(4))][::-1]
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.targets, b.targets)
    assert any(a.tokens.shape != b.tokens.shape for a in first for b in first)
    other = t.batch(8, 0, 8)
    assert first[0].tokens.shape != other.tokens.shape or not np.array_equal(first[0].tokens, other.tokens)


@each
def test_sizes_and_vocabulary(t: Task) -> None:
    seen = set()
    for index in range(40):
        batch = t.batch(1, index, 4)
        assert batch.tokens.shape[1] <= t.longest
        assert batch.tokens.min() >= 0
        assert batch.tokens.max() < t.vocab_size
        seen.add(t.size_of(batch.tokens))
    assert seen <= set(range(t.sizes(1)[0], t.sizes(1)[1] + 1))
    assert len(seen) > 3
    assert t.sizes(8)[1] == max(t.sizes(1)[1] // 8, 1)
    assert t.batch(0, 0, 2, size=t.sizes(1)[1]).tokens.shape[1] == t.longest


@each
def test_no_leak_into_shuffled_inputs(t: Task) -> None:
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


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_what_a_stack_can_see(spec: str) -> None:
    """Copy 16 symbols through two layers: all but windows have a path from what is said to where it is asked."""
    from resolvent.model import LanguageModel, ModelConfig

    t = Copy(vocab_size=20, length=16)
    profile = LanguageModel.shape_only(ModelConfig(layers=2, dim=16, heads=2, pattern=spec)).profile(t.longest)
    needed = 16 + 1  # from a symbol to the place that comes before its copy
    assert (profile.reach >= needed) == (spec != "local:8")


@pytest.mark.parametrize(("make", "message"), [
    (lambda: task("copi"), "unknown task 'copi': expected copy, recall, multihop. Did you mean 'copy'"),
    (lambda: task("copy", {"lenght": 3}), "unknown setting 'lenght' of copy.*Did you mean 'length'"),
    (lambda: Copy(vocab_size=4), "expected vocab_size ≥ 5, got 4"),
    (lambda: Copy(length=3, least=4), "expected 1 ≤ least ≤ length"),
    (lambda: Recall(vocab_size=20, pairs=12), "expected at most 9 pairs for a vocabulary of 20"),
    (lambda: Recall(pairs=12, length=30), "expected length ≥ 36 for 12 pairs, got 30"),
    (lambda: MultiHop(chance=1.5), "expected chance from 0 to 1"),
])  # fmt: skip
def test_impossible_tasks(make: object, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make()  # type: ignore[operator]


def test_settings_make_the_same_task() -> None:
    for t in ALL:
        settings = t.settings()
        assert task(settings.pop("name"), settings) == t
    assert set(TASKS) == {"copy", "recall", "multihop"}


def test_samples_are_drawn() -> None:
    said, asked = Copy(vocab_size=20, length=4, least=4).sample().splitlines()
    assert said.split()[0] == "<"
    assert said.split()[1:5] == asked.split()
    text = MultiHop(vocab_size=40, pairs=4, length=16).sample(1, size=4)
    assert "k" in text
    assert "v" in text
    assert len(text.splitlines()) == 2
