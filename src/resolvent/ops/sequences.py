"""Sequences within a call: packed one after another, or padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

Integers = Sequence[int] | Tensor


def checked_cuts(cu_seqlens: Integers, n: int) -> tuple[int, ...]:
    """0 and the ends of packed sequences."""
    cuts = integers("cu_seqlens", cu_seqlens)
    if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != n or any(after < before for before, after in pairwise(cuts)):
        raise ValueError(
            f"expected cu_seqlens from 0 to N = {n}, never descending, such as [0, {n // 2}, {n}]; got {_shown(cuts)}."
        )
    return tuple(cuts)


def checked_starts(start: Integers, batch: int, n: int) -> list[int]:
    """Where each sequence begins."""
    starts = integers("start", start)
    if len(starts) != batch or any(not 0 <= s <= n for s in starts):
        raise ValueError(f"expected start with B = {batch} numbers from 0 to N = {n}, got {_shown(starts)}.")
    return starts


def check_one_way(cu_seqlens: object, start: object) -> None:
    if cu_seqlens is not None and start is not None:
        raise ValueError("expected cu_seqlens (packed) or start (padded on the left), got both.")


def integers(name: str, values: Integers) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    listed = [int(v) if isinstance(v, np.integer) else v for v in listed] if isinstance(listed, list) else listed
    if not isinstance(listed, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in listed):
        raise TypeError(f"expected {name} as a list or a one-dimensional tensor of integers, got {values!r}.")
    return listed


def to_the_front(tensors: tuple[Tensor, ...], begin: Tensor) -> tuple[Tensor, ...]:
    """(B, H, N, D) each: sequences moved to the front, so that a lattice starts with each; zeros follow it."""
    n = tensors[0].shape[2]
    places = torch.arange(n, device=begin.device)
    there = (places + begin[:, None]).clamp(max=n - 1)
    inside = (places < n - begin[:, None])[:, None, :, None]
    return tuple(torch.where(inside, _along(t, there), 0) for t in tensors)


def back_to_their_places(y: Tensor, begin: Tensor) -> Tensor:
    """What `to_the_front` moved, with zeros before it."""
    places = torch.arange(y.shape[2], device=begin.device)
    there = (places - begin[:, None]).clamp(min=0)
    return torch.where((places >= begin[:, None])[:, None, :, None], _along(y, there), 0)


def _along(t: Tensor, index: Tensor) -> Tensor:
    """Rows of each sequence, taken by (B, N) positions."""
    return t.gather(2, index[:, None, :, None].expand(*t.shape[:2], index.shape[1], t.shape[-1]))


def _shown(values: list[int]) -> str:
    return str(values) if len(values) <= 12 else f"[{', '.join(map(str, values[:10]))}, …, {values[-1]}]"
