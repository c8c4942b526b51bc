"""Shortest paths to an output, against hops and the pattern's own reads."""

from itertools import pairwise

import pytest

import resolvent as rv
from resolvent.analysis.hops import paths_to
from tests.operator_cases import ALL, Spec

N = 40


@pytest.mark.parametrize("spec", ALL, ids=str)
def test_paths_are_shortest_and_follow_the_pattern(spec: Spec) -> None:
    p, hops = rv.pattern(spec), rv.hop_matrix(spec, N)
    a, b = (p.mask(N, part) for part in ("a", "b"))
    for target in (0, 1, 17, N - 1):
        tree = paths_to(p, target)
        assert tree.hops.tolist() == hops[target, : target + 1].tolist()
        for j in range(target + 1):
            path = tree.path(j).tolist()
            assert len(path) - 1 == hops[target, j] or (hops[target, j] == -1 and path == [])
            for step, (before, after) in enumerate(pairwise(path)):
                assert b[after, before] or (step == 0 and a[after, before])


def test_the_first_step_is_the_longest_of_those_that_lead_there() -> None:
    assert paths_to("exponential", 20).path(1).tolist() == [1, 17, 19, 20]


def test_what_cannot_be_asked() -> None:
    with pytest.raises(rv.PatternError, match="expected a target ≤ 4,095, got 4,096"):
        paths_to("dense", 4096)
    with pytest.raises(rv.PatternError, match="nothing reads the future"):
        paths_to("dense", 3).path(4)
