"""Who reads whom, as the kernels want it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from resolvent.kernels import Memory
from resolvent.ops.cpu.layout import memory_of_array
from resolvent.ops.rows import Rows, Table
from resolvent.patterns.strides import Integers


@dataclass(frozen=True, eq=False)
class KernelPlan:
    """Strides, or rows listed one after another: with the last reader of each where its readers are a run.

    See `kernels/forward.py`. A list takes as much memory as there are reads, however wide single rows are.
    """

    offsets: Integers
    table: Table
    starts: Integers
    widths: Integers
    within: Integers
    last_reader: Integers
    cuts: Integers
    widest: int

    @cached_property
    def reads(self) -> tuple[Memory, ...]:
        """Who is read, as all kernels take it: offsets, table, starts and widths."""
        return tuple(memory_of_array(array) for array in (self.offsets, self.table, self.starts, self.widths))

    @cached_property
    def readers(self) -> tuple[Memory, ...]:
        """What the way back takes besides: within and last_reader."""
        return tuple(memory_of_array(array) for array in (self.within, self.last_reader))


def kernel_plan(rows: Rows) -> KernelPlan:
    none, nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    cuts = np.array(rows.cuts, dtype=np.int64)
    if rows.shifted:
        within = np.searchsorted(rows.offsets, np.arange(rows.longest + 1), side="right")
        widths = within[rows.known : rows.longest]
        return KernelPlan(rows.offsets, nothing, none, widths, within, none, cuts, int(widths.max(initial=0)))
    table, widths = rows.listed
    starts = np.cumsum(widths) - widths
    last_reader = none if rows.general else rows.last_reader
    return KernelPlan(none, table, starts, widths, none, last_reader, cuts, int(widths.max(initial=0)))
