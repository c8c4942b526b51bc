"""Kernels of a layer, compiled in the background as soon as it is built: its user has other things to do meanwhile."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from resolvent.kernels import KernelVariant, process, variants_of
from resolvent.ops.cpu.mix import backward, follows, forward
from resolvent.ops.rows import Rows
from resolvent.patterns import Stage, explicit, pattern

_TOKENS = 32  # so many that cache-efficient strides differ from others


def prepare(pattern: Stage, dtype: torch.dtype, d: int) -> None:
    """See that the forward and the backward sweep over heads of d channels are on disk soon."""
    process.start(_sweeps(_kind(pattern), torch.float32 if dtype == torch.float16 else dtype, d))


def _kind(pattern: Stage) -> str:
    """A pattern with the same kernels at usual lengths."""
    rows = Rows(pattern, (0, _TOKENS))
    if rows.general:
        return "explicit"
    if not rows.shifted:
        return "exponential+cache"
    return "first-order" if follows(rows) else "exponential"


@lru_cache(maxsize=32)
def _sweeps(kind: str, dtype: torch.dtype, d: int) -> tuple[tuple[KernelVariant, ...], ...]:
    """Two processes: what the backward sweep needs takes as long as all the rest."""
    (stage,) = (explicit(two_before) if kind == "explicit" else pattern(kind)).stages
    rows = Rows(stage, (0, _TOKENS))  # not `rows_of`, which would keep tables that nobody has filled
    row, gate = _zeros(d, dtype), _zeros(1, dtype)[..., 0]
    inputs = [row, row, row, row, row, gate]
    with variants_of() as first:
        saved = forward(inputs, rows, 1.0)
    with variants_of() as second:
        backward(row, saved, inputs, rows, 1.0)
    return tuple(second), tuple(first)


def two_before(i: int) -> list[int]:
    """Rows that have to be listed one by one."""
    return [i - 2] if i % 2 == 0 and i else []


def _zeros(size: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros((1, 1, _TOKENS, size), dtype=dtype, device="cpu")
