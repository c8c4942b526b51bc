"""Chunks of blocks, as `chunk_pass` wants them: which listed rows are which columns of a chunk's transfer matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.ops.rows import Rows
from resolvent.ops.triton.plan import TILE, BlockPlan, block_plan, put
from resolvent.patterns.strides import Integers

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """Tables on a device, beside those of the blocks that chunks consist of.

    Attributes:
        live_width: columns of a transfer matrix, whole tiles; the rows alive at the begin of any chunk fit.
        columns: (tiles · TILE,) of each listed row its column in the matrix of the chunk; -1 if it lies within.
        alive: (rows, live_width / TILE) on which of a tile of columns each row depends, as bits.
        chunks: (2, all chunks) first block and the one after the last.
        sequences: (2, sequences) first chunk and the one after the last.
    """

    live_width: int
    columns: Tensor
    alive: Tensor
    chunks: Tensor
    sequences: Tensor


@lru_cache(maxsize=32)
def chunk_plan(rows: Rows, device: torch.device, block: int, chunk: int) -> ChunkPlan:
    """Computed on the host, once for each question, from the tables of blocks."""
    if chunk % block:
        raise ValueError(f"expected chunks of whole blocks of {block} rows, got {chunk}.")
    blocks, per = block_plan(rows, torch.device("cpu"), block), chunk // block
    begins = blocks.lists.numpy().astype(np.int64) * TILE
    first = np.arange(0, len(begins) - 1, per)
    width = max(int((begins[first + 1] - begins[first]).max(initial=0)), TILE)
    columns, alive = _columns_and_reach(rows, blocks, begins, per, width)
    chunks, sequences = _layout(blocks, per)
    words = alive.reshape(len(alive), width // TILE, TILE) @ (1 << np.arange(TILE))
    return ChunkPlan(width, put(columns, device), put(words, device), put(chunks, device), put(sequences, device))


def _columns_and_reach(
    rows: Rows, plan: BlockPlan, begins: Integers, per: int, width: int
) -> tuple[Integers, npt.NDArray[np.int64]]:
    """The column of each listed row, and on which columns each new row depends, by any number of reads."""
    sources, readers = plan.sources.numpy(), plan.readers.numpy()
    reach = plan.reach.numpy().reshape(-1, plan.block)
    columns = np.full(len(sources), -1, dtype=np.int64)
    depends = np.zeros((len(reach) * plan.block, width), dtype=np.int64)
    bits = np.arange(plan.block)
    for number in range(len(reach)):
        chunk = number // per * per
        column_of = _index(sources[begins[chunk] : begins[chunk + 1]], rows.longest)
        own = slice(int(begins[number]), int(begins[number + 1]))
        source = sources[own]
        columns[own] = np.where(source >= 0, column_of[source], -1)
        within = source >= rows.known + chunk * plan.block
        passed = np.zeros((len(source), width), dtype=np.int64)  # what each listed row depends on
        passed[within] = depends[source[within] - rows.known]
        before = np.flatnonzero(columns[own] >= 0)
        passed[before, columns[own][before]] = 1
        read = (readers[own][None, :] >> bits[:, None]) & 1
        by_reach = (reach[number][:, None] >> bits[None, :]) & 1
        depends[number * plan.block :][: plan.block] = (by_reach @ (read @ passed)) > 0
    return columns, depends


def _index(listed: Integers, rows: int) -> Integers:
    """Of every row its place in a list, -1 for none."""
    index = np.full(rows, -1, dtype=np.int64)
    index[listed[listed >= 0]] = np.flatnonzero(listed >= 0)
    return index


def _layout(plan: BlockPlan, per: int) -> tuple[Integers, Integers]:
    chunks: list[tuple[int, int]] = []
    sequences: list[tuple[int, int]] = []
    for first, after in plan.sequences.T.tolist():
        begins = np.arange(first, after, per)
        sequences.append((len(chunks), len(chunks) + len(begins)))
        chunks += [(begin, min(begin + per, after)) for begin in begins.tolist()]
    return np.array(chunks, dtype=np.int64).reshape(-1, 2).T, np.array(sequences).T
