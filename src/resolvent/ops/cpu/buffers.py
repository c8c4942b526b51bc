"""What kernels read and write where it does not lie in memory as they want it: in half precision, or in odd sizes.

Kernels compute in float32 or float64, on rows of whole vector units, and read bfloat16. Other tensors go through
buffers: each thread has its own, fills them for a few jobs at a time, and rounds once what a kernel leaves there. So no
tensor is ever copied as a whole into a higher precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.kernels import Memory
from resolvent.ops.cpu.layout import as_array, padded_size
from resolvent.ops.cpu.memory import empty
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.patterns.strides import Integers

Array = npt.NDArray[np.generic]
Bind: TypeAlias = Callable[[list[Array], Integers], Callable[..., None]]  # a kernel, of arrays and cuts
_ROWS = 4096  # in a buffer at once, unless a single job has more


class Buffered(NamedTuple):
    """Contiguous tensors, (B, H, rows, channels), that stand for their sum.

    Two of half precision hold what one of float32 does, but for its last bits: the rounded values, and the rest.
    """

    terms: tuple[Tensor, ...]
    read: bool
    written: bool

    def buffer(self, rows: int) -> Tensor:
        tensor = self.terms[0]
        channels = tensor.shape[-1]
        buffer = empty((rows, padded_size(channels)), compute_dtype(tensor))
        buffer[:, channels:] = 0  # changes no product
        return buffer

    def fill(self, buffer: Tensor, rows: slice) -> None:
        """Before the kernel runs."""
        if self.read:
            first, *rest = self._rows(rows)
            target = buffer[: len(first), : first.shape[-1]].copy_(first)
            for term in rest:
                target += term

    def take(self, buffer: Tensor, rows: slice) -> None:
        """After it: every term is what those before it leave, rounded."""
        if self.written:
            terms = self._rows(rows)
            source = buffer[: len(terms[0]), : terms[0].shape[-1]]
            terms[0].copy_(source)
            for before, term in pairwise(terms):
                source -= before
                term.copy_(source)

    def _rows(self, rows: slice) -> list[Tensor]:
        return [term.flatten(0, 2)[rows] for term in self.terms]


Argument: TypeAlias = Tensor | Buffered


def argument(*terms: Tensor, read: bool = True, written: bool = False) -> Argument:
    """A tensor itself, where a kernel takes it as it lies."""
    first, *rest = terms
    loads = first.dtype == compute_dtype(first) or (first.dtype == torch.bfloat16 and not written)
    ready = loads and not rest and first.shape[-1] == padded_size(first.shape[-1])
    return first if ready else Buffered(terms, read, written)


def run_buffered(
    bind: Bind, arguments: Sequence[Argument], heads: int, rows: Rows, scratch: Callable[[], Sequence[Memory]]
) -> None:
    """Run a kernel over all jobs in threads, with a few at a time, which are all that it sees."""
    begins = np.cumsum(_integers([0, *np.tile(np.diff(rows.cuts) + rows.known, heads)]))  # rows before each job
    most = max(_ROWS, rows.longest)
    size = min(most, int(begins[-1]))

    def own() -> list[Sequence[object]]:
        return [[a.buffer(size) if isinstance(a, Buffered) else a for a in arguments], scratch()]

    @torch.inference_mode()  # or a thread could not write what the caller has made in it
    def work(buffers: list[Tensor], areas: Sequence[Memory], first: int, last: int) -> None:
        for begin, end in _pieces(begins, first, last, most):
            # With known rows a job is a head; without, those of all jobs follow one another, as in a single head.
            cuts = _integers(rows.cuts) if rows.known else begins[begin : end + 1] - begins[begin]
            ranges = [_rows_of(a, rows.cuts, begin, end) for a in arguments]
            steps = list(zip(arguments, buffers, ranges, strict=True))
            bind([_array(*step) for step in steps], cuts)(*areas, 0, end - begin)
            for a, buffer, taken in steps:
                if isinstance(a, Buffered):
                    a.take(buffer, taken)

    in_threads(work, heads, rows.cuts, own)


def _integers(numbers: Sequence[int]) -> Integers:
    return np.array(numbers, dtype=np.int64)


def _pieces(begins: Integers, first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of jobs with at most so many rows."""
    while first < last:
        end = min(int(np.searchsorted(begins, begins[first] + most, side="right")) - 1, last)
        yield first, end
        first = end


def _rows_of(a: Argument, cuts: tuple[int, ...], begin: int, end: int) -> slice:
    """Where rows of these jobs lie. (With several sequences in a head, none has known rows.)"""
    tensor = a.terms[0] if isinstance(a, Buffered) else a
    each, sequences = tensor.shape[2], len(cuts) - 1
    return slice(*(job // sequences * each + cuts[job % sequences] for job in (begin, end)))


def _array(a: Argument, buffer: Tensor, rows: slice) -> Array:
    if isinstance(a, Buffered):
        a.fill(buffer, rows)
        return as_array(buffer)
    return as_array(a.flatten(0, 2)[rows])
