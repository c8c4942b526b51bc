"""The steps that paths can take, listed: what hops and congestion of any pattern are computed from.

A path starts at an input. Its first step follows an edge of A (or of B, since A has a diagonal); the others follow B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers

MOST_POSITIONS = 65_536  # so that hops fit into 16 bits
_MOST_STEPS = 40_000_000  # listed in 160 MB
_BLOCK = 256  # inputs whose hops are computed together

HopBlock = npt.NDArray[np.uint16]
FAR = 65_535  # in a block of hops: no path


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps over n positions, in compressed rows: into position i from `sources[starts[i] : starts[i + 1]]`.

    later  B's: any step of a path, the first included
    first  those of A that B lacks: the first step of a path only
    """

    n: int
    later: tuple[Integers, npt.NDArray[np.int32]]
    first: tuple[Integers, npt.NDArray[np.int32]]

    @property
    def count(self) -> int:
        return len(self.later[1]) + len(self.first[1])

    def readers(self) -> tuple[Integers, npt.NDArray[np.int32]]:
        """`first` by columns: the positions that a first step from j leads to, beyond those of B."""
        starts, sources = self.first
        order = np.argsort(sources, kind="stable")
        rows = np.repeat(np.arange(self.n, dtype=np.int32), np.diff(starts))
        return np.searchsorted(sources[order], np.arange(self.n + 1)), rows[order]


@lru_cache(maxsize=4)
def list_steps(pattern: Pattern, n: int) -> Steps:
    """List the steps over n positions; an error if there are too many."""
    if n > MOST_POSITIONS:
        raise PatternError(
            f"{pattern} has no closed form, so its reads are listed: expected at most {MOST_POSITIONS:,} positions, "
            f"got {n:,} (copying n tokens takes 2n). Analyze it at a shorter length."
        )
    a, b = pattern.stages[0], pattern.stages[-1]
    later = [b.sources(i).astype(np.int32) for i in range(n)] if b.recurrent else []
    if a is b:
        first = [] if b.recurrent else [a.sources(i).astype(np.int32) for i in range(n)]
    else:
        first = [np.setdiff1d(a.sources(i), row, assume_unique=True).astype(np.int32) for i, row in enumerate(later)]
    steps = Steps(n, _compress(later, n), _compress(first, n))
    if steps.count > _MOST_STEPS:
        raise PatternError(
            f"{pattern} has {steps.count:,} reads on {n:,} positions (copying n tokens takes 2n): expected at most "
            f"{_MOST_STEPS:,}. Analyze it at a shorter length."
        )
    return steps


def _compress(rows: list[npt.NDArray[np.int32]], n: int) -> tuple[Integers, npt.NDArray[np.int32]]:
    starts = np.zeros(n + 1, dtype=np.int64)
    if rows:
        np.cumsum([len(row) for row in rows], out=starts[1:])
    return starts, np.concatenate([np.empty(0, dtype=np.int32), *rows])


def hop_blocks(steps: Steps, inputs: int, reach: int) -> Iterator[tuple[int, HopBlock]]:
    """Hops from inputs to outputs, a block of inputs at a time.

    Args:
        steps: The steps.
        inputs: Number of inputs: positions below it.
        reach: Number of outputs from each input on, the one at its own position included.

    Yields:
        The first input of a block, and hops of shape (outputs, inputs): entry [i, j] is from input `begin + j` to
        output `begin + i`, 0 if i = j and `FAR` if there is no path.
    """
    from resolvent.analysis import kernels

    for begin in range(0, inputs, _BLOCK):
        end = min(begin + _BLOCK, inputs)
        yield begin, kernels.hop_block(*steps.later, *steps.first, begin, end, min(end + reach - 1, steps.n))


def hops_apart(pattern: Pattern, lengths: range) -> dict[int, Integers]:
    """For each length the hops from p to p + length, for all p below it, shape (length,); -1 where there is no path."""
    longest = lengths[-1]
    apart = {length: np.empty(length, dtype=np.int64) for length in lengths}
    for begin, block in hop_blocks(list_steps(pattern, 2 * longest), longest, longest + 1):
        for length, hops in apart.items():
            inputs = np.arange(min(block.shape[1], length - begin))
            hops[begin : begin + len(inputs)] = block[inputs + length, inputs]
    return {length: np.where(hops == FAR, -1, hops) for length, hops in apart.items()}
