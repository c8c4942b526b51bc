"""Chunks of blocks, where few rows are alive: what a chunk does to them is a matrix, so that chunks run at once.

What a chunk's outputs take from before it, they take from the m rows that are alive when it begins, and linearly:
y = y' + M y_alive, where y' is what the chunk computes by itself, and M, (rows, m), its transfer matrix. `transfers`
finds coefficients, y' and M of all chunks; `carry` then walks from chunk to chunk, one product each. The way back is
the transpose: `carry_back` hands what a chunk owes to rows before it, M^T dy, from the last chunk to the first, and
then every chunk's own `sweep_back` runs at once.
"""

import triton
import triton.language as tl

from resolvent.ops.triton.forward_pass import coefficients_of_block, sweep_block
from resolvent.ops.triton.tiles import load_block, load_rows, load_tile, product, store_rows


@triton.jit(
    do_not_specialize=["new", "known", "block_count", "weight_rows", "width", "chunk_count", "live_width"],
)
def transfers(
    x, qa, ka, qb, kb, gate, y, y_exact, stats, weights, inverses,
    near, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, width, scale,
    transfer, columns, chunks, chunk_count, live_width,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    TILE: tl.constexpr, BV: tl.constexpr, DIRECT: tl.constexpr, SCORED: tl.constexpr,
    OUTPUT: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One chunk of one head: coefficients of its blocks, its outputs without what came before, and its matrix."""
    chunk = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first_block = tl.load(chunks + chunk)
    after = tl.load(chunks + chunk_count + chunk)
    for block in range(first_block, after):
        coefficients_of_block(
            block, head, x, qa, ka, qb, kb, gate, y, y_exact, stats, weights, inverses,
            near, lists, sources, readers, offsets, blocks, new, known, block_count, weight_rows, width, scale,
            D, DK, BD, BDK, BLOCK, LEVELS, TILE, False, DIRECT, True, SCORED, OUTPUT, COMPUTE, PRECISION, EXACT,
        )  # fmt: skip
        tl.debug_barrier()
    _, number, _, _ = load_block(blocks, first_block, block_count)
    lowest = known + number * BLOCK
    w_head = weights + head * weight_rows * BLOCK
    y_head = y_exact + head * (known + new) * D
    if OUTPUT:
        for first in range(0, D, BV):
            for block in range(first_block + 1, after):
                sweep_block(
                    block, lowest, first + tl.arange(0, BV), y_head, y_head, w_head,
                    inverses + (head * block_count + block) * BLOCK * BLOCK, lists, sources,
                    offsets, blocks, known, block_count, width,
                    D, BLOCK, TILE, False, False, COMPUTE, PRECISION,
                )  # fmt: skip
                tl.debug_barrier()
    live_rows = (tl.load(lists + number + 1) - tl.load(lists + number)) * TILE
    m_head = transfer + head * new * live_width
    for first in range(0, live_rows, BV):
        for block in range(first_block, after):
            transfer_block(
                block, lowest, first + tl.arange(0, BV), m_head, w_head,
                inverses + (head * block_count + block) * BLOCK * BLOCK, lists, sources, columns, blocks,
                known, block_count, live_width, BLOCK, TILE, COMPUTE, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()


@triton.jit
def transfer_block(
    block, lowest, places, transfer, weights, inverse_of_block, lists, sources, columns, blocks,
    known, block_count, live_width,
    BLOCK: tl.constexpr, TILE: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The rows of a block in the transfer matrix: as `sweep_block` on the columns of an identity before the chunk."""
    r = tl.arange(0, BLOCK)
    k_rows = tl.arange(0, TILE)
    first, number, size, tile0 = load_block(blocks, block, block_count)
    begin = tl.load(lists + number)
    shift = first - number * BLOCK - known  # new rows are numbered without those known
    inside = (places < live_width)[None, :]
    read = tl.zeros((BLOCK, places.shape[0]), dtype=COMPUTE)
    for c in range(begin, tl.load(lists + number + 1)):
        entry = c * TILE + k_rows
        source = tl.load(sources + entry)
        rows = (shift + source).to(tl.int64)
        within = (source >= lowest)[:, None] & inside
        value = tl.load(transfer + rows[:, None] * live_width + places[None, :], mask=within, other=0.0)
        value = tl.where(tl.load(columns + entry)[:, None] == places[None, :], 1.0, value)
        w = load_tile(weights, tile0 + c - begin, r, k_rows, BLOCK, TILE)
        read += tl.dot(w, value, input_precision=PRECISION, out_dtype=COMPUTE)
    t = tl.load(inverse_of_block + r[:, None] * BLOCK + r[None, :])
    value = tl.dot(t, read, input_precision=PRECISION, out_dtype=COMPUTE)
    own = (first + r).to(tl.int64)[:, None] * live_width + places[None, :]
    tl.store(transfer + own, value, mask=(r < size)[:, None] & inside)


@triton.jit
def load_transfer(transfer, first, live, tile, live_width, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """A tile of a chunk's matrix, (rows, alive)."""
    rows = (first + tl.arange(0, CHUNK)).to(tl.int64)
    columns = tile * TILE + tl.arange(0, TILE)
    return tl.load(transfer + rows[:, None] * live_width + columns[None, :], mask=live[:, None], other=0.0)


@triton.jit
def load_chunk(chunks, blocks, chunk, chunk_count, block_count, BLOCK: tl.constexpr):
    """First new row of a chunk, that after its last, the sequence's first, and the number of its first block."""
    first, number, _, _ = load_block(blocks, tl.load(chunks + chunk), block_count)
    last, _, size, _ = load_block(blocks, tl.load(chunks + chunk_count + chunk) - 1, block_count)
    return first, last + size, first - number * BLOCK, number


@triton.jit(
    do_not_specialize=["new", "known", "block_count", "chunk_count", "sequence_count", "live_width"],
)
def carry(
    y, y_exact, transfer, lists, sources, blocks, chunks, sequences,
    new, known, block_count, chunk_count, sequence_count, live_width,
    D: tl.constexpr, BV: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
    ROUNDED: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sequence of one head, BV of its channels: y += M y_alive, chunk after chunk. The barrier must stay."""
    head = tl.program_id(0).to(tl.int64)
    sequence = tl.program_id(1)
    channels = tl.program_id(2) * BV + tl.arange(0, BV)
    y += head * (known + new) * D
    y_exact += head * (known + new) * D
    transfer += head * new * live_width
    r = tl.arange(0, CHUNK)
    k_rows = tl.arange(0, TILE)
    for chunk in range(tl.load(sequences + sequence), tl.load(sequences + sequence_count + sequence)):
        first, after, base, number = load_chunk(chunks, blocks, chunk, chunk_count, block_count, BLOCK)
        live = first + r < after
        begin = tl.load(lists + number)
        value = load_rows(y_exact, known + first + r, live, channels, D, COMPUTE)
        for c in range(begin, tl.load(lists + number + 1)):
            source = tl.load(sources + c * TILE + k_rows)
            matrix = load_transfer(transfer, first, live, c - begin, live_width, CHUNK, TILE)
            before = load_rows(y_exact, base + source, source >= 0, channels, D, COMPUTE)
            value += product(matrix, before, PRECISION)
        store_rows(y_exact, value, known + first + r, live, channels, D)
        if ROUNDED:
            store_rows(y, value, known + first + r, live, channels, D)
        tl.debug_barrier()


@triton.jit(
    do_not_specialize=["new", "known", "block_count", "chunk_count", "sequence_count", "live_width"],
)
def carry_back(
    dy, du, transfer, lists, sources, blocks, chunks, sequences,
    new, known, block_count, chunk_count, sequence_count, live_width,
    D: tl.constexpr, BV: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last chunk to the first: what its outputs are owed in all, and of that, what rows before it are."""
    head = tl.program_id(0).to(tl.int64)
    sequence = tl.program_id(1)
    channels = tl.program_id(2) * BV + tl.arange(0, BV)
    dy += head * new * D
    du += head * (known + new) * D
    transfer += head * new * live_width
    r = tl.arange(0, CHUNK)
    k_rows = tl.arange(0, TILE)
    last = tl.load(sequences + sequence_count + sequence) - 1
    for step in range(last - tl.load(sequences + sequence) + 1):
        first, after, base, number = load_chunk(chunks, blocks, last - step, chunk_count, block_count, BLOCK)
        live = first + r < after
        begin = tl.load(lists + number)
        value = load_rows(dy, first + r, live, channels, D, COMPUTE)
        value += load_rows(du, known + first + r, live, channels, D, COMPUTE)
        store_rows(du, value, known + first + r, live, channels, D)
        for c in range(begin, tl.load(lists + number + 1)):
            source = tl.load(sources + c * TILE + k_rows)
            matrix = load_transfer(transfer, first, live, c - begin, live_width, CHUNK, TILE)
            owed = load_rows(du, base + source, source >= 0, channels, D, COMPUTE)
            owed += product(tl.trans(matrix), value, PRECISION)
            store_rows(du, owed, base + source, source >= 0, channels, D)
        tl.debug_barrier()
