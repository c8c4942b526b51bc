"""Rows of tensors are the right tokens: packed, and going on from known rows."""

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.ops.cpu.plan import kernel_plan
from resolvent.ops.rows import rows_of
from tests.operator_cases import SINGLE, Spec, mix, mixer_inputs

EVERY = pytest.mark.parametrize("spec", SINGLE)


@EVERY
def test_one_sequence_is_the_pattern(spec: Spec) -> None:
    p = rv.pattern(spec)
    for n in (1, 2, 3, 20, 70):
        np.testing.assert_array_equal(rows_of(p, (0, n)).table, p.table(n))


@EVERY
def test_known_rows_stand_for_their_positions(spec: Spec) -> None:
    p = rv.pattern(spec)
    for position in (1, 2, 5, 30):
        for n in (1, 3, 20):
            rows = rows_of(p, (0, n), position)
            positions = np.concatenate([rows.held, np.arange(position, position + n)])
            found = np.where(rows.table >= 0, positions[rows.table], -1)
            expected = p.table(position + n)[position:]
            np.testing.assert_array_equal(found, expected[:, : rows.width])
            assert (expected[:, rows.width :] < 0).all()  # of rows before these


@EVERY
def test_held_is_whatever_a_later_token_reads(spec: Spec) -> None:
    p = rv.pattern(spec)
    for position in (1, 4, 17):
        read = np.unique(np.concatenate([p.sources(i) for i in range(position, position + 60)]))
        assert set(read[read < position]) <= set(p.held(position))
        assert len(p.held(position)) <= p.slots(position + 1)


@EVERY
def test_packed_sequences_stay_apart(spec: Spec) -> None:
    p, cuts = rv.pattern(spec), (0, 3, 3, 4, 10, 40)
    table = rows_of(p, cuts).table
    for first, last in pairwise(cuts):
        if first < last:
            alone = p.table(last - first)
            part = table[first:last]
            np.testing.assert_array_equal(np.where(part >= 0, part - first, -1)[:, : alone.shape[1]], alone)
            assert (part[:, alone.shape[1] :] < 0).all()


def now_and_then_everything(i: int) -> range | list[int]:
    return range(i) if i % 100 == 99 else [i - 1] if i else []


def test_lists_are_as_long_as_there_are_reads() -> None:
    """However wide single rows are."""
    p = rv.explicit(now_and_then_everything)
    plan = kernel_plan(rows_of(p.stages[0], (0, 1000)))
    assert plan.widest == 999
    assert len(plan.table) == sum(len(p.sources(i)) for i in range(1000)) < 7000
    for i in (0, 1, 99, 100, 999):
        listed = plan.table[plan.starts[i] : plan.starts[i] + plan.widths[i]]
        np.testing.assert_array_equal(listed, p.sources(i)[::-1])


def test_very_wide_rows_are_computed_in_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["resolvent.ops.cpu.mix"], "_LARGEST_AREA", 1000)
    p = rv.explicit(now_and_then_everything)
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(230, torch.float64, 1, 2, 8, 8).items()}
    results = []
    for backend in ("cpu", "reference"):
        y = mix(inputs, p, backend=backend)
        results.append([y, *torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y))])
    for fast, expected in zip(*results, strict=True):
        torch.testing.assert_close(fast, expected)
