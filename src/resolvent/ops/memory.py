"""Long-lived memory in large pages: a long decode cache is read all over, and every 4 KiB page would be looked up.

(For results of single calls it does not pay: they come and go, and the system may have to tidy up to find room.)
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which it pays
_ON_REQUEST = sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """`torch.zeros`, in pages of 2 MiB where it is large and the system gives them on request."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not _ON_REQUEST or nbytes < _LARGE or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # zero, as the system gives it
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
