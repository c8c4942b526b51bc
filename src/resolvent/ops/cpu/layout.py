"""How tensors lie in memory for the kernels: rows of whole vector units, next to each other."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.kernels import UNIT


def padded_rows(t: Tensor) -> Tensor:
    """Contiguous, the last dimension padded with zeros to whole units, at least one: those change no product."""
    rest = -t.shape[-1] % UNIT if t.shape[-1] else UNIT
    return pad(t, (0, rest)) if rest else t.contiguous()


def as_array(t: Tensor) -> npt.NDArray[np.generic]:
    """All elements in a row, which are the tensor's own memory if it is contiguous."""
    return t.reshape(-1).contiguous().resolve_neg().numpy()  # some views stand for the negative of what memory holds


def span(d: int, t: Tensor) -> tuple[int, ...]:
    """How many elements of a row are handled at once, as `kernels/vectors.py` wants it."""
    return _units(d, t.element_size())


@lru_cache
def _units(d: int, item_bytes: int) -> tuple[int, ...]:
    """Four registers of AVX-512 at most, and a divisor of d."""
    lanes = next(lanes for lanes in (64, 32, 16) if lanes <= 256 // item_bytes and d % lanes == 0)
    return (0,) * (lanes // UNIT)


def scalar(t: Tensor, value: float) -> np.float64 | np.float32:
    """A NumPy scalar of the tensor's type: a Python float would make the kernels compute in double."""
    return np.float64(value) if t.dtype == torch.float64 else np.float32(value)
