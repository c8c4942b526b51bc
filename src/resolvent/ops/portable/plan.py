"""Who reads whom, as tables on a device: computed on the host, once for each question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from resolvent.ops.rows import Rows
from resolvent.patterns.strides import Integers

BLOCK = 64  # rows solved in one step; their inverses take BLOCK numbers per row
CHUNK = 1 << 22  # numbers gathered at a time

Index = slice | Tensor


@dataclass(frozen=True, eq=False)
class EdgePlan:
    """The edges of a pattern between `new` rows and the `known + new` rows they may read."""

    rows: Rows
    device: torch.device

    @property
    def new(self) -> int:
        return self.rows.new

    @property
    def known(self) -> int:
        return self.rows.known

    @cached_property
    def width(self) -> int:
        return int(self.rows.table.shape[1])

    @property
    def wide(self) -> bool:
        """Whether a matrix of all pairs is hardly larger than the coefficients."""
        return 2 * self.width >= self.known + self.new

    @cached_property
    def shifted(self) -> bool:
        """Whether every row reads at the same distances: then the rows that a column reads are a slice."""
        return self.rows.shifted and len(self.rows.cuts) == 2

    @cached_property
    def valid(self) -> Tensor:
        """(new, width): which columns a row has."""
        return self.put(self.rows.table >= 0)

    @cached_property
    def direct(self) -> Tensor:
        """(new, 1 + width): the same for A, whose first column is the row itself."""
        return self.put(np.pad(self.rows.table >= 0, ((0, 0), (1, 0)), constant_values=True))

    @cached_property
    def feeds(self) -> Tensor:
        """(new,): which rows have any source."""
        return self.put((self.rows.table >= 0).any(1))

    @cached_property
    def sources(self) -> Tensor:
        """(new, width) rows to read; beyond a row's sources a row of zeros that is put after all others."""
        table = self.rows.table
        return self.put(np.where(table >= 0, table, self.known + self.new).astype(np.int64))

    @cached_property
    def columns(self) -> Tensor:
        """(new, known + new): for each pair its column of coefficients, `width` if one does not read the other."""
        return self.put(_columns(self.rows.table, self.known + self.new))

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks(self)

    def put(self, array: npt.ArrayLike) -> Tensor:
        # What is kept must serve later, too, whoever asks first: in inference mode, or in a transform of `torch.func`.
        with torch.inference_mode(False), temporarily_clear_interpreter_stack():
            return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def pieces(self, v: Tensor) -> Iterator[tuple[slice, slice, Index]]:
        """(new rows, columns, the rows of v they read): all edges, in slices or in chunks."""
        if self.shifted:
            for c, offset in enumerate(self.rows.offsets[: self.width].tolist()):
                first = max(offset - self.known, 0)
                if first < self.new:
                    last = self.known + self.new - offset
                    yield slice(first, None), slice(c, c + 1), slice(self.known + first - offset, last)
            return
        step = max(CHUNK // max(v[..., :1, :].numel() * self.new, 1), 1)
        for c in range(0, self.width, step):
            yield slice(None), slice(c, c + step), self.sources[:, c : c + step]


@lru_cache(maxsize=32)
def edge_plan(rows: Rows, device: torch.device) -> EdgePlan:
    return EdgePlan(rows, device)


class Blocks:
    """The new rows in blocks of `size`: what each reads within its block, and what before it (far).

    Columns of coefficients for far reads are (rows, widest) with `far_sources` the rows read, or (rows, rows) if the
    plan is wide; `width` stands for none, and the row of zeros after all others for its source.
    """

    def __init__(self, p: EdgePlan) -> None:
        self.size = size = min(BLOCK, p.new)
        self.row_count = -(-p.new // size) * size
        table = np.full((self.row_count, p.width), -1, dtype=np.int64)
        table[: p.new] = np.maximum(p.rows.table.astype(np.int64) - p.known, -1)
        start = np.arange(self.row_count)[:, None] // size * size
        near = _columns(np.where(table >= start, table - start, -1), size)
        self.near = p.put(near)
        far = (table >= 0) & (table < start)
        self.widths: list[int] = far.sum(1).reshape(-1, size).max(1).tolist()
        if p.wide:
            columns, sources = _columns(table, self.row_count), np.empty((0, 0), dtype=np.int64)
        else:
            order = np.argsort(~far, axis=1, kind="stable")[:, : max(self.widths)]
            is_far = np.take_along_axis(far, order, 1)
            columns = np.where(is_far, order, p.width)
            sources = np.where(is_far, np.take_along_axis(table, order, 1), self.row_count)
        self.far, self.far_sources = p.put(columns), p.put(sources)

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, block: int) -> slice:
        return slice(block * self.size, (block + 1) * self.size)


def _columns(table: npt.NDArray[np.int64] | npt.NDArray[np.int32], rows: int) -> Integers:
    """A table of sources turned round: for every pair of rows the column, or the table's width."""
    columns = np.full((len(table), rows), table.shape[1], dtype=np.int64)
    row, column = np.nonzero(table >= 0)
    columns[row, table[row, column]] = column
    return columns
