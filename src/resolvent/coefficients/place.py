"""Where the rows of a call stand in their sequences: packed, padded on the left, or going on from a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from resolvent.patterns.strides import Integers as Positions

Integers = Sequence[int] | Tensor


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
    n: int,
    device: torch.device,
    cu_seqlens: Integers | None = None,
    start: Integers | None = None,
    seen: Positions | None = None,
) -> Place:
    """The place of n rows; `seen`: tokens of each sequence that a cache has seen. The operator checks the rest."""
    if cu_seqlens is not None:
        cuts = [int(cut) for cut in cu_seqlens]
        lengths = [max(after - before, 0) for before, after in pairwise(cuts)]
        positions = torch.cat([torch.arange(0), *(torch.arange(length) for length in lengths)]).to(device)
        if len(positions) != n or start is not None:
            raise ValueError(
                f"expected cu_seqlens from 0 to N = {n}, never descending, and no start beside it; "
                f"got {cuts[:8]}{'' if start is None else ' and start'}."
            )
        return Place(positions, max(lengths, default=1), cu_seqlens=cuts)
    before = [0] if seen is None else seen.tolist()
    if start is None and len(set(before)) <= 1:
        first = before[0] if before else 0
        return Place(torch.arange(first, first + n, device=device), first + n)
    starts = [0] * len(before) if start is None else [int(s) for s in start]
    if len(starts) != len(before) and seen is not None:
        raise ValueError(f"expected start with B = {len(before)} numbers, got {len(starts)}.")
    shifts = [b - s for b, s in zip(before * (len(starts) if seen is None else 1), starts, strict=True)]
    rows = torch.arange(n, device=device) + torch.tensor(shifts, device=device)[:, None]
    inside = None
    if any(starts):
        inside = torch.arange(n, device=device) >= torch.tensor(starts, device=device)[:, None]
        rows = rows.where(inside, 0)
    return Place(rows, max(shifts, default=0) + n, inside, start=None if inside is None else starts)
