"""How tensors lie in memory for the kernels: rows of whole vector units, next to each other."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.kernels import UNIT
from resolvent.ops.precision import compute_dtype


def padded_size(d: int) -> int:
    """Channels of a row in whole units, at least one."""
    return max(-(-d // UNIT), 1) * UNIT


def as_array(t: Tensor) -> npt.NDArray[np.generic]:
    """All elements in a row, which are the tensor's own memory if it is contiguous; bfloat16 as 16-bit integers."""
    flat = t.reshape(-1).contiguous().resolve_neg()  # some views stand for the negative of what memory holds
    return flat.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else flat.numpy()


def span(d: int, t: Tensor) -> tuple[int, ...]:
    """How many elements of a row are handled at once, as `kernels/vectors.py` wants it."""
    return _units(d, compute_dtype(t).itemsize)


@lru_cache
def _units(d: int, item_bytes: int) -> tuple[int, ...]:
    """Four registers of AVX-512 at most, and a divisor of d."""
    lanes = next(lanes for lanes in (64, 32, 16) if lanes <= 256 // item_bytes and d % lanes == 0)
    return (0,) * (lanes // UNIT)


def scalar(t: Tensor, value: float) -> np.float64 | np.float32:
    """A NumPy scalar of the tensor's type: a Python float would make the kernels compute in double."""
    return np.float64(value) if t.dtype == torch.float64 else np.float32(value)
