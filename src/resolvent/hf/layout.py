"""Masks and positions, as transformers gives them, in our terms: where sequences start, and how rows are packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resolvent.patterns.strides import Integers


@dataclass(frozen=True)
class BatchLayout:
    """How the (B, N) new tokens of a call fall into sequences.

    start       where each row begins, after padding on the left; None where nothing is padded
    cu_seqlens  0 and the ends of the sequences of all rows laid end to end, (1, B·N); None where none are packed
    fits_cache  whether a cache can go on from them: not where padding follows a sequence, or several are packed
    """

    start: list[int] | None = None
    cu_seqlens: list[int] | None = None
    fits_cache: bool = True


def layout_of(
    shape: tuple[int, int], mask: Tensor | None, position_ids: Tensor | None, cu_seqlens: Tensor | None, seen: int
) -> BatchLayout:
    """The layout that a mask, positions or the ends of packed sequences describe, after `seen` columns in a cache."""
    if cu_seqlens is not None:
        return _packed([int(end) for end in cu_seqlens.tolist()], shape, seen)
    if mask is not None:
        layout = _padded(_checked_mask(mask, shape, seen), seen)
        if layout.start is not None or not layout.fits_cache:
            return layout
    if position_ids is None or seen or torch.compiler.is_compiling():
        return BatchLayout()
    return _restarting(position_ids, shape)


def check_positions(position_ids: Tensor | None, layout: BatchLayout, n: int, before: Integers) -> None:
    """Positions count from the start of each sequence, after those of a cache: others raise an error."""
    if position_ids is None or layout.cu_seqlens is not None or torch.compiler.is_compiling():
        return
    starts = np.zeros(len(before), dtype=np.int64) if layout.start is None else np.array(layout.start)
    expected = np.arange(n) + (before - starts)[:, None]
    given = np.broadcast_to(position_ids.detach().cpu().numpy()[:, -n:], expected.shape)
    wrong = ((given != expected) & (np.arange(n) >= starts[:, None])).any(1)
    if layout.fits_cache and wrong.any():
        row = int(wrong.argmax())
        shown = [numbers[row, starts[row] :][:4].tolist() for numbers in (expected, given)]
        raise ValueError(
            f"positions count from the start of each sequence: expected position_ids such as {shown[0]} … in row "
            f"{row}, got {shown[1]} …; leave them out, give an attention_mask, and tokens that the cache has not seen. "
            "A prompt without any token, which is all padding, cannot be continued: begin it with one."
        )


def check_past(mask: Tensor | None, seen: int, before: Integers) -> None:
    """A mask has as many tokens in the `seen` columns of a cache as the cache has: `before` in each row.

    A cache that was filled under another mask would give other logits than all tokens without a cache.
    """
    if mask is None or not seen or torch.compiler.is_compiling():
        return
    counted = (mask[:, :seen] != 0).sum(1).cpu().numpy()
    if (counted != before).any():
        row = int((counted != before).argmax())
        raise ValueError(
            f"expected an attention_mask of the {before[row]} tokens that the cache has seen in row {row}, got one of "
            f"{counted[row]} in its first {seen} columns: give the same mask when the cache is filled."
        )


def _checked_mask(mask: Tensor, shape: tuple[int, int], seen: int) -> Tensor:
    expected = (shape[0], seen + shape[1])
    if mask.ndim != 2 or tuple(mask.shape) != expected:
        raise ValueError(
            f"expected attention_mask of shape {expected}, zero in padding, for all columns that were seen and the new "
            f"ones, got {tuple(mask.shape)}. Who reads whom is said by the pattern."
        )
    return mask != 0


def _padded(mask: Tensor, seen: int) -> BatchLayout:
    recent = mask[:, max(seen - 1, 0) :].cpu().numpy()  # with the column before, in which padding may have ended
    new = recent[:, -(mask.shape[1] - seen) :]
    if new.all():
        return BatchLayout()
    changes = np.diff(recent.astype(np.int8), axis=1)
    ends, begins = (changes < 0).any(1), (changes > 0).sum(1) + recent[:, 0]
    if (begins > 1).any():
        row = int((begins > 1).argmax())
        raise ValueError(
            f"expected padding before or after a sequence, got zeros inside of it in row {row} of the mask."
        )
    starts = np.where(new.any(1), new.argmax(1), new.shape[1])
    stopped = ends | (~new.any(1) & (recent[:, 0] != 0))
    starts = np.where(stopped & ~new.any(1), 0, starts)
    return BatchLayout(starts.tolist() if starts.any() else None, None, not bool(stopped.any()))


def _packed(ends: list[int], shape: tuple[int, int], seen: int) -> BatchLayout:
    if shape[0] != 1 or seen:
        raise ValueError(
            f"expected packed sequences in a batch of one, without a cache, got {shape[0]} rows after {seen}."
        )
    return BatchLayout(None, ends, fits_cache=False)


def _restarting(position_ids: Tensor, shape: tuple[int, int]) -> BatchLayout:
    """Positions that start again at 0 within a row begin another sequence."""
    ids = np.broadcast_to(position_ids.detach().cpu().numpy(), shape)
    begins = ids == 0
    if not begins[:, 1:].any():
        return BatchLayout()
    if (ids[:, 0] != 0).any() or ((ids[:, 1:] != ids[:, :-1] + 1) & ~begins[:, 1:]).any():
        raise ValueError("expected the position_ids of packed sequences to count from 0 in each, one by one.")
    return BatchLayout(None, [*np.flatnonzero(begins).tolist(), ids.size], fits_cache=False)
