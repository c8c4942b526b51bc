"""How the rows of a call fall into sequences: packed one after another, or padded on the left. Checked here, once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Indices = Sequence[int] | Tensor


class Sequences(NamedTuple):
    """What was checked: `cuts` are 0 and the ends of the sequences packed along N; rows before `starts` are padding."""

    cuts: tuple[int, ...]
    starts: tuple[int, ...] | None = None

    @property
    def packed(self) -> bool:
        return len(self.cuts) > 2


def checked_sequences(batch: int, n: int, cu_seqlens: Indices | None, start: Indices | None) -> Sequences:
    """One sequence of n rows in each of the batch unless `cu_seqlens` or `start` says otherwise."""
    if cu_seqlens is not None and start is not None:
        raise ValueError("expected cu_seqlens (packed) or start (padded on the left), got both.")
    if cu_seqlens is not None:
        return Sequences(_cuts(cu_seqlens, n))
    return Sequences((0, n), None if start is None else _starts(start, batch, n))


def _cuts(cu_seqlens: Indices, n: int) -> tuple[int, ...]:
    cuts = checked_integers("cu_seqlens", cu_seqlens)
    if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != n or any(after < before for before, after in pairwise(cuts)):
        raise ValueError(
            f"expected cu_seqlens from 0 to N = {n}, never descending, such as [0, {n // 2}, {n}]; "
            f"got {_abbreviated(cuts)}."
        )
    return tuple(cuts)


def _starts(start: Indices, batch: int, n: int) -> tuple[int, ...]:
    starts = checked_integers("start", start)
    if len(starts) != batch or any(not 0 <= s <= n for s in starts):
        raise ValueError(f"expected start with B = {batch} numbers from 0 to N = {n}, got {_abbreviated(starts)}.")
    return tuple(starts)


def checked_integers(name: str, values: Indices) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    listed = [int(v) if isinstance(v, np.integer) else v for v in listed] if isinstance(listed, list) else listed
    if not isinstance(listed, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in listed):
        raise TypeError(f"expected {name} as a list or a one-dimensional tensor of integers, got {values!r}.")
    return listed


def to_front(tensors: tuple[Tensor, ...], starts: Tensor) -> tuple[Tensor, ...]:
    """(B, H, N, D) each: sequences moved to the front, so that a lattice starts with each; zeros follow it."""
    n = tensors[0].shape[2]
    rows = torch.arange(n, device=starts.device)
    index = (rows + starts[:, None]).clamp(max=n - 1)
    inside = (rows < n - starts[:, None])[:, None, :, None]
    return tuple(torch.where(inside, _gather_rows(t, index), 0) for t in tensors)


def from_front(y: Tensor, starts: Tensor) -> Tensor:
    """What `to_front` moved, back where it was, with zeros before it."""
    rows = torch.arange(y.shape[2], device=starts.device)
    index = (rows - starts[:, None]).clamp(min=0)
    return torch.where((rows >= starts[:, None])[:, None, :, None], _gather_rows(y, index), 0)


def zero_padding(t: Tensor, starts: tuple[int, ...] | None) -> Tensor:
    """(B, H, N, D) with zeros before each sequence, whatever stands there."""
    if starts is None or not any(starts):
        return t
    rows, begin = torch.arange(t.shape[2], device=t.device), torch.tensor(starts, device=t.device)
    return torch.where((rows >= begin[:, None])[:, None, :, None], t, 0)


def _gather_rows(t: Tensor, index: Tensor) -> Tensor:
    return t.gather(2, index[:, None, :, None].expand(*t.shape[:2], index.shape[1], t.shape[-1]))


def _abbreviated(values: list[int]) -> str:
    return str(values) if len(values) <= 12 else f"[{', '.join(map(str, values[:10]))}, …, {values[-1]}]"
