"""How tensors lie in memory for the kernels: rows of whole vector units, next to each other."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.kernels import UNIT, Memory
from resolvent.ops.cpu.memory import LINE
from resolvent.ops.precision import compute_dtype

_LETTERS = {torch.float32: "<f4", torch.float64: "<f8", torch.bfloat16: "<i2"}  # as NumPy writes types
_SPAN = 256  # bytes of a row at once: four registers of AVX-512, eight of AVX


def padded_size(d: int) -> int:
    """Channels of a row in whole units, at least one."""
    return max(-(-d // UNIT), 1) * UNIT


def as_array(t: Tensor) -> npt.NDArray[np.generic]:
    """All elements in a row, which are the tensor's own memory if it is contiguous; bfloat16 as 16-bit integers."""
    flat = t.reshape(-1).contiguous().resolve_neg()  # some views stand for the negative of what memory holds
    return flat.view(torch.int16).numpy() if t.dtype == torch.bfloat16 else flat.numpy()


def memory_of(t: Tensor) -> Memory:
    """The same for kernels, which need no array; not even one of a contiguous tensor's memory."""
    flat = t.contiguous().resolve_neg()
    return Memory(_LETTERS[t.dtype], flat.data_ptr(), flat.numel(), flat)


def memory_of_array(array: npt.NDArray[np.generic]) -> Memory:
    """A contiguous array, which stays alive as long as this does."""
    return Memory(array.dtype.str, array.ctypes.data, array.size, array)


def scratch(*areas: tuple[str, int]) -> list[Memory]:
    """Memory of these types and lengths, which nobody has written: parts of one block, on cache lines of their own."""
    sizes = [-(-np.dtype(kind).itemsize * length // LINE) * LINE for kind, length in areas]
    block = np.empty(sum(sizes) + LINE, dtype=np.uint8)
    start = block.ctypes.data + -block.ctypes.data % LINE
    begins = accumulate(sizes, initial=start)
    return [Memory(kind, begin, length, block) for (kind, length), begin in zip(areas, begins, strict=False)]


def span(d: int, t: Tensor) -> tuple[int, ...]:
    """How many elements of a row are handled at once, as `kernels/vectors.py` wants it."""
    return _units(d, compute_dtype(t).itemsize)


def pair_span(d: int, t: Tensor, registers: int | None = None) -> tuple[int, ...]:
    """The same where two rows of sums are in registers at once, of which there are 16 without AVX-512, and 32 with."""
    registers = vector_registers() if registers is None else registers
    return _units(d, compute_dtype(t).itemsize, _SPAN if registers >= 32 else _SPAN // 2)


@cache
def vector_registers() -> int:
    return 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16


def _units(d: int, item_bytes: int, most: int = _SPAN) -> tuple[int, ...]:
    """So many bytes at most, and a divisor of d."""
    lanes = next(lanes for lanes in (64, 32, 16) if lanes == UNIT or (lanes <= most // item_bytes and d % lanes == 0))
    return (0,) * (lanes // UNIT)


def scalar(t: Tensor, value: float) -> np.float64 | np.float32:
    """A NumPy scalar of the tensor's type: a Python float would make the kernels compute in double."""
    return np.float64(value) if t.dtype == torch.float64 else np.float32(value)
