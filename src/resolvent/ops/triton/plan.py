"""Who reads whom, as kernels want it: rows in blocks, near reads as bits, and what a block reads of the rows before it.

A *block* is up to 64 rows of one sequence. What its rows read within it, the *near* reads, is a 64-bit number per row.
What they read before it comes in one of two forms:

- *strided*, where all rows read at the same, scattered distances: row i reads i - f for each offset f;
- *listed*: the distinct rows that the block reads, in tiles of `TILE`, each with a 64-bit number that says which rows
  of the block read it. Cache-efficient patterns list few, whatever the block: the positions alive when it begins.

Where few rows are alive, some blocks make a *chunk*, whose outputs are linear in the rows alive when it begins: listed
rows are then columns of its transfer matrix (`chunk_pass`).

Rows are numbered within their sequence, known ones first, so that one table serves all sequences of a packed call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from resolvent.ops.rows import Rows
from resolvent.patterns.strides import Integers

TILE = 16  # listed rows that are multiplied at once: the least that tensor cores take
LARGEST_BLOCK = 64  # bits of a mask
Bits = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Tables on a device, for blocks of `block` rows. Rows of `blocks`, `spans` and `sequences` are their columns.

    Attributes:
        near: (rows,) which rows of its block a row reads.
        lists: (blocks + 1,) where the tiles of each block begin; strided, how many offsets reach into each.
        sources, readers: (tiles · TILE,) listed rows, -1 for none, and which rows of the block read them.
        offsets: (width,) distances of strided reads.
        blocks: (4, all blocks) first new row, number within its sequence, rows, first tile.
        sequences: (2, sequences) first block and the one after the last.
        spans: (7, spans) rows that gradients are collected for, known ones among them: first row, number within its
            sequence, rows, first block, new rows, first entry and entries of its sequence.
        entries: where the listed entries of each row begin, and the entries.
    """

    strided: bool
    block: int
    width: int
    tiles: int
    near: Tensor
    lists: Tensor
    sources: Tensor
    readers: Tensor
    offsets: Tensor
    blocks: Tensor
    sequences: Tensor
    spans: Tensor
    entry_begins: Tensor
    entries: Tensor

    @property
    def block_count(self) -> int:
        return int(self.blocks.shape[1])

    @property
    def weight_rows(self) -> int:
        """What the weights of a head's reads before blocks take, in rows of `block` numbers."""
        return self.width * self.block_count if self.strided else self.tiles * TILE

    @property
    def entries_per_head(self) -> int:
        return 0 if self.strided else self.tiles * TILE


@lru_cache(maxsize=32)
def block_plan(rows: Rows, device: torch.device, block: int) -> BlockPlan:
    """Computed on the host, once for each question."""
    if not 1 <= block <= LARGEST_BLOCK:
        raise ValueError(f"expected blocks of at most {LARGEST_BLOCK} rows, got {block}.")
    count = -(-(rows.longest - rows.known) // block)
    strided = rows.shifted and not rows.pattern.contiguous_columns  # windows are alive: products of matrices suit them
    if strided:
        tables = _strided(rows, block, count)
    elif rows.pattern.contiguous_columns:
        tables = _alive(rows, block, count)
    else:
        tables = _listed(rows, block, count)
    near, lists, sources, readers = tables
    begins = np.zeros_like(lists) if strided else lists  # in tiles
    blocks, sequences, spans = _layout(rows, block, begins)
    entry_begins, entries = _entries(sources, rows.longest)
    offsets = rows.offsets if strided else np.empty(0, dtype=np.int64)
    tiles = sum(int(begins[-(-(after - before) // block)]) for before, after in pairwise(rows.cuts))

    return BlockPlan(
        strided=strided,
        block=block,
        width=len(offsets),
        tiles=tiles,
        near=put(near.ravel(), device, np.int64),
        lists=put(lists, device),
        sources=put(sources, device),
        readers=put(readers, device, np.int64),
        offsets=put(np.minimum(offsets, np.iinfo(np.int32).max), device),
        blocks=put(blocks, device),
        sequences=put(sequences, device),
        spans=put(spans, device),
        entry_begins=put(entry_begins, device),
        entries=put(entries, device),
    )


def put(array: npt.ArrayLike, device: torch.device, dtype: type[np.signedinteger] = np.int32) -> Tensor:
    """A table on a device. It must serve later, too, whoever asks first: in inference mode, or within `torch.func`."""
    with torch.inference_mode(False), temporarily_clear_interpreter_stack():
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(device)


def _strided(rows: Rows, block: int, count: int) -> tuple[Bits, Integers, Integers, Bits]:
    distances = np.subtract.outer(np.arange(block), np.arange(block))
    reads = np.isin(distances, rows.offsets)
    near = np.tile(_pack(reads), (count, 1))
    last = rows.known + np.arange(1, count + 1) * block  # the row after each block
    lists = np.append(rows.offsets.searchsorted(last), 0)
    return near, lists, *_no_lists()


def _alive(rows: Rows, block: int, count: int) -> tuple[Bits, Integers, Integers, Bits]:
    """Whatever is alive when a block begins, the latest first; a row is read until it dies."""
    last = np.zeros(rows.known + count * block, dtype=np.int64)
    last[: rows.longest] = rows.last_reader
    begins = rows.known + np.arange(count) * block
    own = last[rows.known :].reshape(count, block)
    readers = begins[:, None, None] + np.arange(block)[:, None]
    earlier = np.tri(block, block, -1, dtype=np.bool_)
    near = np.stack(
        [_pack((one[None, :] >= rows_) & earlier) for one, rows_ in zip(own, readers, strict=True)] or [_no_rows(block)]
    )
    alive, listed = np.arange(rows.known)[::-1], []
    for begin in begins.tolist():
        alive = alive[last[alive] >= begin]
        listed.append((alive, _first_bits(np.minimum(last[alive] - begin + 1, block))))
        alive = np.concatenate([np.arange(begin, begin + block)[::-1], alive])
    return near[:count], *_tiled(listed)


def _listed(rows: Rows, block: int, count: int) -> tuple[Bits, Integers, Integers, Bits]:
    """The union of what the rows of a block read, the latest first."""
    flat, lengths = rows.listed
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    begin = rows.known + row_of // block * block
    near = np.zeros(count * block, dtype=np.int64)
    is_near = flat >= begin
    np.bitwise_or.at(near, row_of[is_near], np.int64(1) << (flat - begin)[is_near])
    sources, readers, block_of = flat[~is_near].astype(np.int64), row_of[~is_near] % block, row_of[~is_near] // block
    edges = np.searchsorted(block_of, np.arange(count + 1))
    listed = []
    for first, after in pairwise(edges.tolist()):
        distinct, index = np.unique(-sources[first:after], return_inverse=True)
        bits = np.zeros(len(distinct), dtype=np.int64)
        np.bitwise_or.at(bits, index, np.int64(1) << readers[first:after])
        listed.append((-distinct, bits))
    return near.reshape(count, block), *_tiled(listed)


def _tiled(listed: list[tuple[Integers, Bits]]) -> tuple[Integers, Integers, Bits]:
    """Where the tiles of each block begin, and all of them, filled up with -1."""
    tiles = [-(-len(sources) // TILE) for sources, _ in listed]
    lists = np.concatenate([[0], np.cumsum(tiles, dtype=np.int64)])
    all_sources = np.full(lists[-1] * TILE, -1, dtype=np.int64)
    all_readers = np.zeros(lists[-1] * TILE, dtype=np.int64)
    for begin, (sources, readers) in zip((lists * TILE).tolist(), listed, strict=False):
        all_sources[begin : begin + len(sources)] = sources
        all_readers[begin : begin + len(sources)] = readers
    return lists, all_sources, all_readers


def _no_lists() -> tuple[Integers, Bits]:
    return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def _no_rows(block: int) -> Bits:
    return np.zeros(block, dtype=np.int64)


def _pack(mask: npt.NDArray[np.bool_]) -> Bits:
    """(…, up to 64) booleans as (…) numbers, the first as the lowest bit."""
    weights = np.int64(1) << np.arange(mask.shape[-1], dtype=np.int64)
    bits: Bits = np.bitwise_or.reduce(np.where(mask, weights, np.int64(0)), axis=-1)
    return bits


def _first_bits(count: Integers) -> Bits:
    """Numbers whose lowest `count` bits are set, for counts from 1 to 64."""
    ones: Bits = (np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> (64 - count).astype(np.uint64)).astype(np.int64)
    return ones


def _layout(rows: Rows, block: int, begins: Integers) -> tuple[Integers, Integers, Integers]:
    """Blocks, sequences and spans of a call, as `BlockPlan` has them; `begins` are tiles within a sequence."""
    blocks, sequences, spans = [np.empty((4, 0), dtype=np.int64)], [], [np.empty((7, 0), dtype=np.int64)]
    first_block = first_tile = 0
    for before, after in pairwise(rows.cuts):
        new = after - before
        number = np.arange(-(-new // block))
        size = np.minimum(new - number * block, block)
        blocks.append(np.stack([before + number * block, number, size, first_tile + begins[number]]))
        local = np.arange(0, rows.known + new, block)
        tiles = int(begins[len(number)])
        constant = np.array([first_block, new, first_tile * TILE, tiles * TILE])[:, None].repeat(len(local), 1)
        ends = np.minimum(rows.known + new - local, block)
        spans.append(np.concatenate([np.stack([before + local, local, ends]), constant]))
        sequences.append((first_block, first_block + len(number)))
        first_block, first_tile = first_block + len(number), first_tile + tiles
    return np.concatenate(blocks, 1), np.array(sequences).T, np.concatenate(spans, 1)


def _entries(sources: Integers, rows: int) -> tuple[Integers, Integers]:
    """For each row of the longest sequence its listed entries, ascending, one row after another."""
    entries = np.flatnonzero(sources >= 0)
    order = np.argsort(sources[entries], kind="stable")
    return np.searchsorted(sources[entries][order], np.arange(rows + 1)), entries[order]


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """Tables on a device, beside those of the blocks that chunks consist of.

    Attributes:
        live_width: columns of a transfer matrix, whole tiles; the rows alive at the begin of any chunk fit.
        columns: (tiles · TILE,) of each listed row its column in the matrix of the chunk; -1 if it lies within.
        chunks: (2, all chunks) first block and the one after the last.
        sequences: (2, sequences) first chunk and the one after the last.
    """

    live_width: int
    columns: Tensor
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
    chunks, sequences = _chunk_layout(blocks, per)
    return ChunkPlan(width, *(put(t, device) for t in (_columns(rows, blocks, begins, per), chunks, sequences)))


def _columns(rows: Rows, plan: BlockPlan, begins: Integers, per: int) -> Integers:
    sources = plan.sources.numpy()
    columns = np.full(len(sources), -1, dtype=np.int64)
    for number in range(len(begins) - 1):
        chunk = number // per * per
        column_of = _index(sources[begins[chunk] : begins[chunk + 1]], rows.longest)
        own = slice(int(begins[number]), int(begins[number + 1]))
        columns[own] = np.where(sources[own] >= 0, column_of[sources[own]], -1)
    return columns


def _index(listed: Integers, rows: int) -> Integers:
    """Of every row its place in a list, -1 for none."""
    index = np.full(rows, -1, dtype=np.int64)
    index[listed[listed >= 0]] = np.flatnonzero(listed >= 0)
    return index


def _chunk_layout(plan: BlockPlan, per: int) -> tuple[Integers, Integers]:
    chunks: list[tuple[int, int]] = []
    sequences: list[tuple[int, int]] = []
    for first, after in plan.sequences.T.tolist():
        begins = np.arange(first, after, per)
        sequences.append((len(chunks), len(chunks) + len(begins)))
        chunks += [(begin, min(begin + per, after)) for begin in begins.tolist()]
    return np.array(chunks, dtype=np.int64).reshape(-1, 2).T, np.array(sequences).T
