"""Large results in large pages: touching fresh memory 4 KiB at a time can take longer than computing what goes there.

The allocator that torch uses on a CPU hands large blocks back to the system when they are freed, so that every call
starts with untouched pages: measured, more than half the time of a backward sweep (docs/log.md). Large results are
therefore mapped here, on request in pages of 2 MiB, and unmapped when the tensor dies.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which it pays
_CONTIGUOUS = torch.contiguous_format
_BY_REQUEST = sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")


def empty_like(t: Tensor) -> Tensor:
    """`torch.empty_like`, contiguous."""
    return _map(t.shape, t.dtype) if _pays(t.nbytes, t.device) else torch.empty_like(t, memory_format=_CONTIGUOUS)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """`torch.zeros`. A long decode cache is read all over, and with pages of 4 KiB every read would look one up."""
    nbytes = math.prod(shape) * dtype.itemsize
    return _map(shape, dtype) if _pays(nbytes, torch.device(device)) else torch.zeros(shape, dtype=dtype, device=device)


def _pays(nbytes: int, device: torch.device) -> bool:
    return _BY_REQUEST and nbytes >= _LARGE and device.type == "cpu"


def _map(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory as the system gives it, which is zero."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
