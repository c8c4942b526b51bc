"""Where the rows of a call stand in their sequences: packed, padded on the left, or going on from a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from resolvent.ops.sequences import Integers, check_one_way, checked_cuts, checked_starts
from resolvent.patterns.strides import Integers as Positions


@dataclass(frozen=True)
class Place:
    """Positions count from the start of each sequence, so that a sequence means the same wherever it lies."""

    positions: Tensor  # (N,), or (B, N) where rows of the batch differ; 0 in padding
    longest: int  # one more than the largest position
    inside: Tensor | None = None  # (B, N), false in padding; None if there is none
    cu_seqlens: Integers | None = None
    start: Integers | None = None
    angles: dict[object, Tensor] = field(default_factory=dict, repr=False)  # what `rope` worked out, for all layers

    @property
    def begins(self) -> Tensor:
        """Where sequences begin: nothing before is seen. (N,) or (B, N)."""
        begins = self.positions == 0
        return begins if self.inside is None else begins & self.inside

    @property
    def packed(self) -> bool:
        return self.cu_seqlens is not None


def place(
    batch: int,
    n: int,
    device: torch.device,
    cu_seqlens: Integers | None = None,
    start: Integers | None = None,
    seen: Positions | None = None,
) -> Place:
    """The place of n rows; `seen`: tokens of each sequence that a cache has seen."""
    check_one_way(cu_seqlens, start)
    if cu_seqlens is not None:
        cuts = checked_cuts(cu_seqlens, n)
        lengths = [after - before for before, after in pairwise(cuts)]
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        return Place(positions, max(lengths), cu_seqlens=cuts)
    starts = [0] * batch if start is None else checked_starts(start, batch, n)
    before = [0] * batch if seen is None else seen.tolist()
    if not any(starts) and len(set(before)) <= 1:
        first = before[0] if before else 0
        return Place(torch.arange(first, first + n, device=device), first + n)
    shifts = [b - s for b, s in zip(before, starts, strict=True)]
    rows = torch.arange(n, device=device) + torch.tensor(shifts, device=device)[:, None]
    if not any(starts):
        return Place(rows, max(before) + n)
    inside = torch.arange(n, device=device) >= torch.tensor(starts, device=device)[:, None]
    return Place(rows.where(inside, 0), max(max(shifts) + n, 1), inside, start=starts)
