"""Who reads whom, as the kernels want it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.ops.rows import Rows, Table
from resolvent.patterns.strides import Integers


@dataclass(frozen=True, eq=False)
class KernelPlan:
    """Strides, or a table: with the last reader of each row where its readers are a run. See `kernels/forward.py`."""

    offsets: Integers
    table: Table
    widths: Integers
    within: Integers
    last_reader: Integers
    cuts: Integers
    widest: int


def kernel_plan(rows: Rows) -> KernelPlan:
    none = np.empty(0, dtype=np.int64)
    cuts = np.array(rows.cuts, dtype=np.int64)
    if rows.shifted:
        within = np.searchsorted(rows.offsets, np.arange(rows.longest + 1), side="right")
        widths = within[rows.known : rows.longest]
        no_table = np.empty((0, 0), dtype=np.int32)
        return KernelPlan(rows.offsets, no_table, widths, within, none, cuts, int(widths.max(initial=0)))
    table = np.ascontiguousarray(rows.local_table)
    widths = (table >= 0).sum(1)
    last_reader = none if rows.general else rows.last_reader
    return KernelPlan(none, table, widths, none, last_reader, cuts, int(widths.max(initial=0)))
