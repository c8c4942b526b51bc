"""Memory that is not given back at once, and memory in large pages.

The allocator that torch uses on a CPU returns every large block to the system when it is freed, so that each call
begins with untouched pages: measured, a third to a half of a backward sweep (docs/log.md). So results are kept for
reuse when their tensors die, up to an eighth of the machine's memory; `release()` lets go of them.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which large pages pay
LINE = 64  # of the processor's caches: a vector that lies in two is read twice
_REUSED = range(1 << 20, 1 << 30)  # sizes that are kept
_LEAST_KEPT, _MOST_KEPT = 3 << 27, 1 << 32  # six results of 12 heads of 64 in float32: of 16,384 and of 221,000 tokens
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_INT = 2**31 - 1  # the most that it takes
_ON_REQUEST = sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")

_free: dict[int, list[npt.NDArray[np.uint8]]] = {}


def empty_like(t: Tensor) -> Tensor:
    """`torch.empty_like`, contiguous."""
    if t.device.type != "cpu":
        return torch.empty_like(t, memory_format=torch.contiguous_format)
    return empty(t.shape, t.dtype)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`torch.empty` on a CPU."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes not in _REUSED:
        return torch.empty(shape, dtype=dtype, device="cpu")
    kept = _free.get(nbytes)
    try:
        memory = kept.pop() if kept else np.empty(nbytes + LINE, dtype=np.uint8)
    except IndexError:  # another thread was quicker
        memory = np.empty(nbytes + LINE, dtype=np.uint8)
    start = -memory.ctypes.data % LINE
    view = memory[start : start + nbytes]  # dies with the tensor's storage, whoever holds that last
    weakref.finalize(view, _keep, memory)
    return torch.from_numpy(view).view(dtype).view(*shape)


def release() -> None:
    """Give kept memory back to the system."""
    _free.clear()


def _keep(memory: npt.NDArray[np.uint8]) -> None:
    size = memory.nbytes - LINE
    blocks = _free.pop(size, [])
    _free[size] = [*blocks, memory]  # the size used last comes last
    held = sum(size * len(blocks) for size, blocks in list(_free.items()))
    for size in list(_free):
        if held <= kept_at_most():
            return
        held -= size * len(_free.pop(size, ()))  # a size that was used before others is of no use any more


def tune_allocator(keep: int) -> None:
    """Have glibc, which torch's own results come from, keep freed blocks up to this size, and twice that in all.

    It holds for the whole process; nothing happens where there is no glibc.
    """
    with suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, max(keep, 2**16))
        libc.mallopt(_TRIM_THRESHOLD, min(2 * keep, _INT))


@cache
def kept_at_most() -> int:
    """Bytes that are kept for reuse."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        memory = 0
    return max(_LEAST_KEPT, min(memory // 8, _MOST_KEPT))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """`torch.zeros`, in pages of 2 MiB where it is large and the system gives them on request.

    A long decode cache lives long and is read all over, and with pages of 4 KiB every read would look one up.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not _ON_REQUEST or nbytes < _LARGE or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # zero, as the system gives it
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
