"""Rows of tensors are the right tokens: packed, and going on from known rows."""

from itertools import pairwise

import numpy as np
import pytest

import resolvent as rv
from resolvent.ops.rows import rows_of
from tests.operator_cases import PATTERNS, Spec

EVERY = pytest.mark.parametrize("spec", [*PATTERNS, "offsets:2,5+cache"])


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
