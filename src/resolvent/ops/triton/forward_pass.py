"""The forward pass in two launches: `coefficients` of all blocks at once, and `sweep` through each sequence.

With N the near reads of a block in B and F what it reads before, y = (I - N)^-1 (A x + F y): the first launch computes
softmaxes, A x and the inverses; the second walks from block to block. Weights no longer depend on channels there, so
that these are shared out among programs.
"""

import triton
import triton.language as tl

from resolvent.ops.triton.tiles import (
    bits_to_mask,
    inverse,
    load_block,
    load_rows,
    load_tile,
    product,
    readers_to_mask,
    safe,
    scores_with,
    store_rows,
)


@triton.jit(do_not_specialize=["new", "known", "block_count", "weight_rows", "width"])
def coefficients(
    x, qa, ka, qb, kb, gate, y, y_exact, stats, weights, inverses,
    near, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, width, scale,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    TILE: tl.constexpr, STRIDED: tl.constexpr, DIRECT: tl.constexpr, RECURRENT: tl.constexpr, SCORED: tl.constexpr,
    OUTPUT: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One block of one head. Without OUTPUT only what the sweep back needs is computed: weights and inverses of B."""
    coefficients_of_block(
        tl.program_id(0), tl.program_id(1).to(tl.int64), x, qa, ka, qb, kb, gate, y, y_exact, stats, weights, inverses,
        near, lists, sources, readers, offsets, blocks, new, known, block_count, weight_rows, width, scale,
        D, DK, BD, BDK, BLOCK, LEVELS, TILE, STRIDED, DIRECT, RECURRENT, SCORED, OUTPUT, COMPUTE, PRECISION, EXACT,
    )  # fmt: skip


@triton.jit
def coefficients_of_block(
    block, head, x, qa, ka, qb, kb, gate, y, y_exact, stats, weights, inverses,
    near, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, width, scale,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    TILE: tl.constexpr, STRIDED: tl.constexpr, DIRECT: tl.constexpr, RECURRENT: tl.constexpr, SCORED: tl.constexpr,
    OUTPUT: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Softmaxes, A x, and the inverse of near feedback; y is left as if nothing before the block were fed back."""
    first, number, size, tile0 = load_block(blocks, block, block_count)
    r = tl.arange(0, BLOCK)
    live = r < size
    queries = first + r
    own = known + first + r
    local = known + number * BLOCK + r  # within the sequence
    base = first - number * BLOCK  # of the sequence
    x += head * (known + new) * D
    y += head * (known + new) * D
    y_exact += head * (known + new) * D
    ka += head * (known + new) * DK
    kb += head * (known + new) * DK
    qa += head * new * DK
    qb += head * new * DK
    gate += head * new
    stats += head * new * 4
    begin = tl.load(lists + number)
    end = tl.load(lists + number + 1)
    if STRIDED:
        end = begin
        begin = begin * 0
    channels = tl.arange(0, BD)
    features = tl.arange(0, BDK)
    bits = tl.load(near + number * BLOCK + r, mask=live, other=0)
    before = bits_to_mask(bits, r)
    k_rows = tl.arange(0, TILE)

    if OUTPUT:
        if DIRECT:
            itself = before | (r[:, None] == r[None, :])
            q = load_rows(qa, queries, live, features, DK, COMPUTE)
            s = scores_with(q, qa, queries, live, ka, own, live, scale, BLOCK, BLOCK, DK, BDK, COMPUTE, EXACT)
            s = tl.where(itself, s, float("-inf"))
            m = tl.max(s, 1)
            p = tl.where(itself, tl.exp(s - m[:, None]), 0.0)
            total = tl.sum(p, 1)
            o = product(p, load_rows(x, own, live, channels, D, COMPUTE), PRECISION)
            for c in range(begin, end):
                if STRIDED:
                    offset = tl.load(offsets + c)
                    reads = live & (local >= offset) & (r < offset)
                    key = load_rows(ka, own - offset, reads, features, DK, COMPUTE)
                    one = tl.where(reads, tl.sum(q * key, 1) * scale, float("-inf"))
                    m_new = tl.maximum(m, one)
                    pc = tl.where(reads, tl.exp(one - m_new), 0.0)
                    rescale = tl.exp(m - m_new)
                    total = total * rescale + pc
                    o = o * rescale[:, None] + pc[:, None] * load_rows(x, own - offset, reads, channels, D, COMPUTE)
                    m = m_new
                else:
                    entry = c * TILE + k_rows
                    source = tl.load(sources + entry)
                    reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
                    row, valid = base + source, source >= 0
                    st = scores_with(q, qa, queries, live, ka, row, valid, scale, BLOCK, TILE, DK, BDK, COMPUTE, EXACT)
                    st = tl.where(reads2, st, float("-inf"))
                    m_new = tl.maximum(m, tl.max(st, 1))
                    pt = tl.where(reads2, tl.exp(st - m_new[:, None]), 0.0)
                    rescale = tl.exp(m - m_new)
                    total = total * rescale + tl.sum(pt, 1)
                    v = load_rows(x, row, valid, channels, D, COMPUTE)
                    o = o * rescale[:, None] + product(pt, v, PRECISION)
                    m = m_new
            o = o / total[:, None]
            tl.store(stats + queries * 4, m, mask=live)
            tl.store(stats + queries * 4 + 1, 1.0 / total, mask=live)
        else:
            o = load_rows(x, own, live, channels, D, COMPUTE)
        if not RECURRENT:
            store_rows(y, o, own, live, channels, D)

    if RECURRENT:
        w_head = weights + head * weight_rows * BLOCK
        w_column = w_head + (block * width).to(tl.int64) * BLOCK + r
        w_tile = w_head + tile0.to(tl.int64) * TILE * BLOCK + r[:, None] * TILE + k_rows[None, :]
        if SCORED:
            q = load_rows(qb, queries, live, features, DK, COMPUTE)
            s = scores_with(q, qb, queries, live, kb, own, live, scale, BLOCK, BLOCK, DK, BDK, COMPUTE, EXACT)
            s = tl.where(before, s, float("-inf"))
        else:
            s = tl.where(before, 0.0, float("-inf")).to(COMPUTE)
        m = tl.max(s, 1)
        total = tl.sum(tl.where(before, tl.exp(s - safe(m)[:, None]), 0.0), 1)
        for c in range(begin, end):
            if STRIDED:
                offset = tl.load(offsets + c)
                reads = live & (local >= offset) & (r < offset)
                if SCORED:
                    key = load_rows(kb, own - offset, reads, features, DK, COMPUTE)
                    one = tl.where(reads, tl.sum(q * key, 1) * scale, float("-inf"))
                else:
                    one = tl.where(reads, 0.0, float("-inf")).to(COMPUTE)
                m_new = tl.maximum(m, one)
                pc = tl.where(reads, tl.exp(one - safe(m_new)), 0.0)
                total = total * tl.exp(m - safe(m_new)) + pc
                m = m_new
                tl.store(w_column + c * BLOCK, one)
            else:
                entry = c * TILE + k_rows
                source = tl.load(sources + entry)
                reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
                if SCORED:
                    row, valid = base + source, source >= 0
                    st = scores_with(q, qb, queries, live, kb, row, valid, scale, BLOCK, TILE, DK, BDK, COMPUTE, EXACT)
                    st = tl.where(reads2, st, float("-inf"))
                else:
                    st = tl.where(reads2, 0.0, float("-inf")).to(COMPUTE)
                m_new = tl.maximum(m, tl.max(st, 1))
                pt = tl.where(reads2, tl.exp(st - safe(m_new)[:, None]), 0.0)
                total = total * tl.exp(m - safe(m_new)) + tl.sum(pt, 1)
                m = m_new
                tl.store(w_tile + (c - begin) * TILE * BLOCK, st)
        feeds = total != 0  # NaN, too
        g = tl.where(feeds, tl.load(gate + queries, mask=live, other=0.0).to(COMPUTE), 0.0)
        inv = tl.where(feeds, 1.0 / tl.where(feeds, total, 1.0), 0.0)
        m = safe(m)
        share = g * inv
        tl.debug_barrier()
        for c in range(begin, end):
            if STRIDED:
                one = tl.load(w_column + c * BLOCK)
                one = tl.where(one == float("-inf"), 0.0, tl.exp(one - m) * share)
                tl.store(w_column + c * BLOCK, one)
            else:
                at = w_tile + (c - begin) * TILE * BLOCK
                st = tl.load(at)
                st = tl.where(st == float("-inf"), 0.0, tl.exp(st - m[:, None]) * share[:, None])
                tl.store(at, st)
        n = tl.where(before, tl.exp(s - m[:, None]) * share[:, None], 0.0)
        t = inverse(n, BLOCK, LEVELS, PRECISION)
        t_block = inverses + (head * block_count + block) * BLOCK * BLOCK
        tl.store(t_block + r[:, None] * BLOCK + r[None, :], t)
        if OUTPUT:
            tl.store(stats + queries * 4 + 2, m, mask=live)
            tl.store(stats + queries * 4 + 3, inv, mask=live)
            store_rows(y_exact, product(t, (1.0 - g)[:, None] * o, PRECISION), own, live, channels, D)


@triton.jit(do_not_specialize=["new", "known", "block_count", "sequence_count", "weight_rows", "width"])
def sweep(
    y, y_exact, weights, inverses, lists, sources, offsets, blocks, sequences,
    new, known, block_count, sequence_count, weight_rows, width,
    D: tl.constexpr, BV: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STRIDED: tl.constexpr,
    ROUNDED: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sequence of one head, BV of its channels: y += (I - N)^-1 (F y), block after block.

    Each step reads rows that earlier steps have stored: the barrier must stay, and nothing may be fetched before it.
    """
    head = tl.program_id(0).to(tl.int64)
    sequence = tl.program_id(1)
    y += head * (known + new) * D
    y_exact += head * (known + new) * D
    channels = tl.program_id(2) * BV + tl.arange(0, BV)
    w_head = weights + head * weight_rows * BLOCK
    for block in range(tl.load(sequences + sequence), tl.load(sequences + sequence_count + sequence)):
        sweep_block(
            block, 0, channels, y, y_exact, w_head, inverses + (head * block_count + block) * BLOCK * BLOCK,
            lists, sources, offsets, blocks, known, block_count, width,
            D, BLOCK, TILE, STRIDED, ROUNDED, COMPUTE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()


@triton.jit
def sweep_block(
    block, lowest, channels, y, y_exact, weights, inverse_of_block, lists, sources, offsets, blocks,
    known, block_count, width,
    D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STRIDED: tl.constexpr, ROUNDED: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step: what the block reads of rows from `lowest` on (a number within the sequence) is fed back."""
    r = tl.arange(0, BLOCK)
    k_rows = tl.arange(0, TILE)
    first, number, size, tile0 = load_block(blocks, block, block_count)
    live = r < size
    own = known + first + r
    local = known + number * BLOCK + r
    base = first - number * BLOCK
    begin = tl.load(lists + number)
    end = tl.load(lists + number + 1)
    if STRIDED:
        end = begin
        begin = begin * 0
    read = tl.zeros((BLOCK, channels.shape[0]), dtype=COMPUTE)
    for c in range(begin, end):
        if STRIDED:
            offset = tl.load(offsets + c)
            reads = live & (local >= offset) & (r < offset)
            w = tl.load(weights + (block * width + c).to(tl.int64) * BLOCK + r)
            read += w[:, None] * load_rows(y_exact, own - offset, reads, channels, D, COMPUTE)
        else:
            entry = c * TILE + k_rows
            source = tl.load(sources + entry)
            w = load_tile(weights, tile0 + c - begin, r, k_rows, BLOCK, TILE)
            read += product(w, load_rows(y_exact, base + source, source >= lowest, channels, D, COMPUTE), PRECISION)
    t = tl.load(inverse_of_block + r[:, None] * BLOCK + r[None, :])
    value = load_rows(y_exact, own, live, channels, D, COMPUTE) + product(t, read, PRECISION)
    store_rows(y_exact, value, own, live, channels, D)
    if ROUNDED:
        store_rows(y, value, own, live, channels, D)
