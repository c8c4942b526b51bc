"""Where the rows of a call stand in their sequences: packed, padded on the left, or continuing from a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from resolvent.ops.sequences import Indices, Sequences, checked_sequences
from resolvent.patterns.strides import Integers


@dataclass(frozen=True)
class Positions:
    """Positions count from the start of each sequence, so that a sequence means the same wherever it lies.

    ids        (N,), or (B, N) where rows of the batch differ; 0 in padding
    longest    one more than the largest position
    sequences  how the rows fall into sequences, checked
    mask       (B, N), false in padding; None if there is none
    rotations  what `rope` computed, for all layers
    """

    ids: Tensor
    longest: int
    sequences: Sequences
    mask: Tensor | None = None
    rotations: dict[object, Tensor] = field(default_factory=dict, repr=False)

    @property
    def begins(self) -> Tensor:
        """Where sequences begin: nothing before is seen. (N,) or (B, N)."""
        begins = self.ids == 0
        return begins if self.mask is None else begins & self.mask


def digits(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """(…, 3): positions below 2^24 in digits of base 256, the smallest first, each exact in half precision."""
    return torch.stack([ids % 256, ids // 256 % 256, ids // 65_536], -1).to(dtype)


def positions_of(
    batch: int,
    n: int,
    device: torch.device,
    cu_seqlens: Indices | None = None,
    start: Indices | None = None,
    seen: Integers | None = None,
) -> Positions:
    """The positions of n rows; `seen`: tokens of each sequence that a cache has seen."""
    sequences = checked_sequences(batch, n, cu_seqlens, start)
    if sequences.packed:
        lengths = [after - before for before, after in pairwise(sequences.cuts)]
        ids = torch.cat([torch.arange(length) for length in lengths]).to(device)
        return Positions(ids, max(lengths), sequences)
    starts = sequences.starts or (0,) * batch
    before = [0] * batch if seen is None else seen.tolist()
    if not any(starts) and len(set(before)) <= 1:
        first = before[0] if before else 0
        return Positions(torch.arange(first, first + n, device=device), first + n, Sequences(sequences.cuts))
    shifts = [b - s for b, s in zip(before, starts, strict=True)]
    ids = torch.arange(n, device=device) + torch.tensor(shifts, device=device)[:, None]
    if not any(starts):
        return Positions(ids, max(before) + n, Sequences(sequences.cuts))
    mask = torch.arange(n, device=device) >= torch.tensor(starts, device=device)[:, None]
    return Positions(ids.where(mask, 0), max(max(shifts) + n, 1), sequences, mask)
