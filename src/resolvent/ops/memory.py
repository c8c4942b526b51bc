"""Large results in large pages: touching fresh memory 4 KiB at a time can take longer than computing what goes there.

The allocator that torch uses on a CPU hands large blocks back to the system when they are freed, so that every call
starts with untouched pages: measured, more than half the time of a backward sweep (docs/log.md). Large results are
therefore mapped here, on request in pages of 2 MiB, and unmapped when the tensor dies.
"""

from __future__ import annotations

import mmap
import sys

import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which it pays
_BY_REQUEST = sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")


def empty_like(t: Tensor) -> Tensor:
    """`torch.empty_like`, contiguous."""
    if t.nbytes < _LARGE or t.device.type != "cpu" or not _BY_REQUEST:
        return torch.empty_like(t, memory_format=torch.contiguous_format)
    memory = mmap.mmap(-1, t.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=t.dtype).view(t.shape)
