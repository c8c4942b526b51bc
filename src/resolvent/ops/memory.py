"""Large results in large pages: touching fresh memory page by page can take as long as computing what goes there."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import lru_cache

import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which it pays: two of the usual large pages


def empty_like(t: Tensor) -> Tensor:
    """`torch.empty_like`, contiguous; a large result asks the kernel for large pages where it gives them on request."""
    result = torch.empty_like(t, memory_format=torch.contiguous_format)
    if result.nbytes >= _LARGE and result.device.type == "cpu":
        first = -(-result.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        _advise(first, result.data_ptr() + result.nbytes - first)
    return result


def _advise(address: int, size: int) -> None:
    call = _madvise()
    if call is not None:
        call(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(mmap.MADV_HUGEPAGE))  # only advice: may fail


@lru_cache
def _madvise() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)
