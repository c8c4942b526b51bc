"""Kernels of a layer, compiled in the background as soon as it is built: its user has other things to do meanwhile."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from resolvent.kernels import KernelVariant, process, variants_of
from resolvent.ops.cpu.mix import backward, forward
from resolvent.ops.rows import Rows
from resolvent.patterns import pattern


def prepare(dtype: torch.dtype, d: int) -> None:
    """See that the forward and the backward sweep over heads of d channels are on disk soon."""
    process.start(_sweeps(torch.float32 if dtype == torch.float16 else dtype, d))


@lru_cache(maxsize=32)
def _sweeps(dtype: torch.dtype, d: int) -> tuple[tuple[KernelVariant, ...], ...]:
    """Two processes: what the backward sweep needs takes as long as all the rest."""
    row, gate = _zeros(d, dtype), _zeros(1, dtype)[..., 0]
    inputs = [row, row, row, row, row, gate]
    with variants_of() as first:
        _rows("exponential+cache", 32).local_table  # noqa: B018
        saved = forward(inputs, _rows("exponential"), 1.0)
    with variants_of() as second:
        backward(row, saved, inputs, _rows("exponential"), 1.0)
    return tuple(second), tuple(first)


def _rows(spelling: str, n: int = 1) -> Rows:
    """Not `rows_of`, which would keep tables that nobody has filled."""
    (stage,) = pattern(spelling).stages
    return Rows(stage, (0, n))


def _zeros(size: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros((1, 1, 1, size), dtype=dtype, device="cpu")
