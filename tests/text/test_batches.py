"""Batches: every target exactly once, from the numbers alone; and errors for what cannot be cut."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.tasks import IGNORED
from resolvent.text import LastTargets, TextBatches, TextError, Windows

law = settings(max_examples=150, deadline=None)


def text(length: int) -> np.ndarray[Any, Any]:
    """Tokens equal to their positions."""
    return np.arange(length, dtype=np.uint16)


def scored(tokens: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> list[int]:
    """The targets that count, each of which must be the one after its token."""
    counts = targets != IGNORED
    assert np.array_equal(tokens[counts] + 1, targets[counts])
    return targets[counts].tolist()


@law
@given(st.integers(2, 90), st.integers(1, 20), st.integers(1, 7), st.integers(-3, 2**64))
def test_every_target_once_per_epoch(length: int, context: int, batch: int, seed: int) -> None:
    if length <= context:
        return
    stream, epochs = TextBatches(text(length), context, batch, seed), 3
    rows = []
    for index in range(-(-epochs * stream.windows // batch)):
        made = stream.make(index)
        assert made.tokens.shape == made.targets.shape == (batch, context)
        assert made.tokens.dtype == made.targets.dtype == np.int64
        rows += list(zip(made.tokens, made.targets, strict=True))
    for epoch in range(epochs):
        windows = rows[epoch * stream.windows : (epoch + 1) * stream.windows]
        seen = Counter(target for row in windows for target in scored(*row))
        assert seen == Counter(range(1, length))
        for tokens, targets in windows:  # unbroken text, but for the turn at its end
            steps = np.diff(tokens)
            assert ((steps == 1) | (tokens[:-1] == length - 2) & (tokens[1:] == 0)).all()
            assert (targets != IGNORED).any()


def test_a_batch_follows_from_its_numbers() -> None:
    tokens = text(1000)
    stream = TextBatches(tokens, 16, 4, seed=5)
    first = [stream.make(index) for index in range(40)]
    for index in reversed(range(40)):
        again = TextBatches(tokens, 16, 4, seed=5).make(index)
        assert np.array_equal(first[index].tokens, again.tokens)
        assert np.array_equal(first[index].targets, again.targets)
    assert not np.array_equal(TextBatches(tokens, 16, 4, seed=6).make(0).tokens, first[0].tokens)
    double = TextBatches(tokens, 16, 8, seed=5).make(3)  # the same windows, whatever the size of a batch
    assert np.array_equal(double.tokens, np.concatenate([first[6].tokens, first[7].tokens]))


def test_each_epoch_cuts_elsewhere_and_in_another_order() -> None:
    stream = TextBatches(text(10_001), 100, 100)
    assert stream.windows == 100
    begins = [stream.make(epoch).tokens[:, 0] for epoch in range(20)]
    assert len({int(begin[0] % 100) for begin in begins}) > 10
    assert all((np.diff(begin) % 10_000 != 100).any() for begin in begins)
    assert stream.epochs(20) == 20.0


@law
@given(st.integers(2, 90), st.integers(1, 20), st.integers(1, 7), st.data())
def test_evaluation_counts_every_target_once(length: int, context: int, batch: int, data: st.DataObject) -> None:
    stride = data.draw(st.none() | st.integers(1, context))
    windows = Windows(text(length), context, batch, stride)
    batches = list(windows)
    assert len(batches) == len(windows)
    assert sum(len(b.tokens) for b in batches) == windows.windows
    assert [t for b in batches for t in scored(b.tokens, b.targets)] == list(range(1, length))  # once, and in order
    for number, (tokens, targets) in enumerate(row for b in batches for row in zip(b.tokens, b.targets, strict=True)):
        begin = number * (stride or context)
        size = min(context, length - 1 - begin)
        assert tokens.tolist() == [*range(begin, begin + size), *[0] * (context - size)]
        counted = np.flatnonzero(targets != IGNORED)
        assert 0 < len(counted) <= (stride or context) or number == 0
        if number:
            assert counted[0] == context - (stride or context)  # at least so many tokens before it
    for index, made in enumerate(batches):
        assert np.array_equal(windows.make(index).targets, made.targets)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: TextBatches(text(8), 8, 1), "too short: expected more than 8 tokens, one window of context, got 8"),
    (lambda: TextBatches(text(8), 2, True), "expected batch to be an integer ≥ 1, got True"),
    (lambda: TextBatches(text(8), 2, 1).make(-1), "expected a batch index ≥ 0, got -1"),
    (lambda: TextBatches(text(8)[None], 2, 1), r"expected a 1-D array of token ids, got shape \(1, 8\)"),
    (lambda: TextBatches(text(8) / 2, 2, 1), "got shape .* of float64"),
    (lambda: Windows(text(1), 4), "too short: expected at least 2 tokens, got 1"),
    (lambda: Windows(text(9), 4, stride=5), "expected stride ≤ context = 4, got 5"),
    (lambda: Windows(text(9), 4).make(2), "expected a batch index from 0 to 1, got 2"),
    (lambda: LastTargets(text(20), 9, 8, scored=2), "expected scored ≤ context ≤ longest < 20 tokens"),
    (lambda: LastTargets(text(20), 8, 8, scored=9), "expected scored ≤ context ≤ longest < 20 tokens"),
])  # fmt: skip
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(TextError, match=message):
        make()


@pytest.mark.parametrize("context", [8, 13, 32])
def test_last_targets_are_the_same_whatever_the_context(context: int) -> None:
    tokens = np.arange(200)
    shown = list(LastTargets(tokens, context, 32, batch=2, step=20, scored=5))
    found = [target for batch in shown for row in batch.targets for target in row if target != IGNORED]
    ends = range(32, 200, 20)
    assert found == [target for end in ends for target in range(end - 4, end + 1)]
    for batch in shown:
        assert batch.tokens.shape[1] == context
        assert (batch.targets[:, -5:] == batch.tokens[:, -5:] + 1).all()
        assert (batch.targets[:, :-5] == IGNORED).all()
    assert sum(len(batch.tokens) for batch in shown) == LastTargets(tokens, context, 32, step=20, scored=5).windows
