"""The backward pass in up to five launches, without atomics: every number is written by one program.

With U = A x the outputs are y = (I - B)^-1 U, and a gradient dY of y gives dU = (I - B)^-T dY, the same recurrence
read from the end. With p the softmax of a row, r_ij = <dU_i, v_j> and c its share, 1 - g in A (v = x), g in B (v = y),

    d score_ij = c_i p_ij (r_ij - δ_i),   δ_i = Σ_j p_ij r_ij,   dx = A^T dU,   dg_i = δ_i(B) - δ_i(A).

`coefficients` (again), `sweep_back`, `slopes` of A and of B, and `collect`: rows get what their readers owe them.
"""

import triton
import triton.language as tl

from resolvent.ops.triton.tiles import (
    after_known,
    bits_to_mask,
    load_block,
    load_rows,
    product,
    readers_to_mask,
    scores_of,
    store_rows,
)


@triton.jit(do_not_specialize=["new", "known", "block_count", "sequence_count", "weight_rows", "width"])
def sweep_back(
    dy, du, weights, inverses, lists, sources, offsets, blocks, sequences,
    new, known, block_count, sequence_count, weight_rows, width,
    D: tl.constexpr, BV: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STRIDED: tl.constexpr,
    CHUNKED: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient dU of one sequence of one head, BV of its channels, from the last block to the first.

    Strided, a block takes from its readers, and so do known rows at last; listed, it adds to the rows of `du` that it
    has read, which begin as zeros. CHUNKED, `sequences` are chunks, and `du` already has what they are owed.
    """
    head = tl.program_id(0).to(tl.int64)
    sequence = tl.program_id(1)
    channels = tl.program_id(2) * BV + tl.arange(0, BV)
    r = tl.arange(0, BLOCK)
    k_rows = tl.arange(0, TILE)
    dy += head * new * D
    du += head * (known + new) * D
    w_head = weights + head * weight_rows * BLOCK
    first_block = tl.load(sequences + sequence)
    last_block = tl.load(sequences + sequence_count + sequence) - 1
    lowest = first_block * 0
    if CHUNKED:
        lowest = known + tl.load(blocks + block_count + first_block) * BLOCK
    for step in range(last_block - first_block + 1):
        block = last_block - step
        first, number, size, tile0 = load_block(blocks, block, block_count)
        live = r < size
        own = known + first + r
        base = first - number * BLOCK
        if CHUNKED:
            value = tl.zeros((BLOCK, BV), dtype=COMPUTE)
        else:
            value = load_rows(dy, first + r, live, channels, D, COMPUTE)
        if STRIDED:
            _, last_number, last_size, _ = load_block(blocks, last_block, block_count)
            rows_after = last_number * BLOCK + last_size - number * BLOCK - r  # this one among them
            for c in range(width):
                offset = tl.load(offsets + c)
                at = r + offset
                reads = live & (offset < rows_after) & (at >= BLOCK) & (at % BLOCK < offset)
                w_row = ((block + at // BLOCK) * width + c).to(tl.int64) * BLOCK + at % BLOCK
                w = tl.load(w_head + w_row, mask=reads, other=0.0)
                value += w[:, None] * load_rows(du, own + offset, reads, channels, D, COMPUTE)
        else:
            value += load_rows(du, own, live, channels, D, COMPUTE)
        t = tl.load(inverses + (head * block_count + block) * BLOCK * BLOCK + r[None, :] * BLOCK + r[:, None])
        value = product(t, value, PRECISION)
        store_rows(du, value, own, live, channels, D)
        if not STRIDED:
            for c in range(tl.load(lists + number), tl.load(lists + number + 1)):
                entry = c * TILE + k_rows
                source = tl.load(sources + entry)
                at = (tile0 + c - tl.load(lists + number)).to(tl.int64) * TILE * BLOCK
                w = tl.load(w_head + at + r[None, :] * TILE + k_rows[:, None])
                more = product(w, value, PRECISION)
                owed = load_rows(du, base + source, source >= lowest, channels, D, COMPUTE)
                store_rows(du, owed + more, base + source, source >= lowest, channels, D)
        tl.debug_barrier()
    if STRIDED:
        for row in range(0, known, BLOCK):  # which come with one sequence only
            at = row + r
            value = tl.zeros((BLOCK, BV), dtype=COMPUTE)
            for c in range(width):
                offset = tl.load(offsets + c)
                reader = at + offset - known
                reads = (at < known) & (reader >= 0) & (reader < new)
                w_row = ((reader // BLOCK) * width + c).to(tl.int64) * BLOCK + reader % BLOCK
                w = tl.load(w_head + w_row, mask=reads, other=0.0)
                value += w[:, None] * load_rows(du, known + reader, reads, channels, D, COMPUTE)
            store_rows(du, value, at, at < known, channels, D)
            tl.debug_barrier()


@triton.jit(
    do_not_specialize=["new", "known", "block_count", "weight_rows", "entries_per_head", "width", "recurrent"],
)
def slopes(
    q, k, v, du, gate, stats, dq, dk, dv, dgate, partial_k, partial_v, far_slopes, far_weights,
    near, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, entries_per_head, width, recurrent, scale,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    STRIDED: tl.constexpr, A: tl.constexpr, READS: tl.constexpr, SCORED: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Gradients of one block's scores, on A's side or B's.

    Writes dq; of dk, and of dx for A, what comes from the block itself; what it owes to rows before it goes into
    `partial_k`, `partial_v` by listed entry, or, strided, as slopes and weights into `far_slopes`, `far_weights`.
    """
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first, number, size, tile0 = load_block(blocks, block, block_count)
    r = tl.arange(0, BLOCK)
    live = r < size
    queries = first + r
    own = known + first + r
    local = known + number * BLOCK + r
    base = first - number * BLOCK
    channels = tl.arange(0, BD)
    features = tl.arange(0, BDK)
    k_rows = tl.arange(0, TILE)
    k += head * (known + new) * DK
    dk += head * (known + new) * DK
    v += head * (known + new) * D
    dv += head * (known + new) * D
    du = after_known(du, head, new, known, recurrent, D)
    q += head * new * DK
    dq += head * new * DK
    gate += head * new
    dgate += head * new
    stats += head * new * 4
    side: tl.constexpr = 0 if A else 2
    widest: tl.constexpr = 16 if EXACT == "tf32x3" and (BD > 64 or BDK > 64) else 32  # float32 rows: more would spill
    chunk_v: tl.constexpr = widest if widest < BD else BD
    chunk_k: tl.constexpr = widest if widest < BDK else BDK
    share = tl.load(gate + queries, mask=live, other=0.0).to(COMPUTE)
    gated = r < size * recurrent
    feeds = tl.load(stats + queries * 4 + 3, mask=gated, other=0.0) != 0
    share = tl.where(feeds, share, 0.0)
    if A:
        share = 1.0 - share

    if READS:
        largest = tl.load(stats + queries * 4 + side, mask=live, other=0.0)
        inv = tl.load(stats + queries * 4 + side + 1, mask=live, other=0.0)
        begin = tl.load(lists + number)
        end = tl.load(lists + number + 1)
        if STRIDED:
            end = begin
            begin = begin * 0
        mask = bits_to_mask(tl.load(near + number * BLOCK + r, mask=live, other=0), r)
        if A:
            mask = (mask | (r[:, None] == r[None, :])) & live[:, None]
        if SCORED:
            s = scores_of(q, queries, live, k, own, live, scale, BLOCK, BLOCK, DK, chunk_k, COMPUTE, EXACT)
            p = tl.where(mask, tl.exp(s - largest[:, None]) * inv[:, None], 0.0)
        else:
            p = tl.where(mask, 1.0, 0.0).to(COMPUTE)
        slope = scores_of(du, queries, live, v, own, live, 1.0, BLOCK, BLOCK, D, chunk_v, COMPUTE, PRECISION)
        slope = tl.where(mask, slope, 0.0)
        delta = tl.sum(p * slope, 1)
        for c in range(begin, end):
            if STRIDED:
                offset = tl.load(offsets + c)
                reads = live & (local >= offset) & (r < offset)
                grad = load_rows(du, queries, live, channels, D, COMPUTE)
                one = tl.sum(grad * load_rows(v, own - offset, reads, channels, D, COMPUTE), 1)
                if SCORED:
                    query = load_rows(q, queries, live, features, DK, COMPUTE)
                    key = load_rows(k, own - offset, reads, features, DK, COMPUTE)
                    one *= tl.exp(tl.sum(query * key, 1) * scale - largest) * inv
                delta += tl.where(reads, one, 0.0)
            else:
                entry = c * TILE + k_rows
                source = tl.load(sources + entry)
                valid = source >= 0
                reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
                row = base + source
                term = scores_of(du, queries, live, v, row, valid, 1.0, BLOCK, TILE, D, chunk_v, COMPUTE, PRECISION)
                if SCORED:
                    st = scores_of(q, queries, live, k, row, valid, scale, BLOCK, TILE, DK, chunk_k, COMPUTE, EXACT)
                    term *= tl.exp(st - largest[:, None]) * inv[:, None]
                delta += tl.sum(tl.where(reads2, term, 0.0), 1)
        if SCORED:
            slope = tl.where(mask, share[:, None] * p * (slope - delta[:, None]) * scale, 0.0)
            key_own = load_rows(k, own, live, features, DK, COMPUTE)
            dqt = tl.dot(slope, key_own, input_precision=PRECISION, out_dtype=COMPUTE)
            query_own = load_rows(q, queries, live, features, DK, COMPUTE)
            dkt = tl.dot(tl.trans(slope), query_own, input_precision=PRECISION, out_dtype=COMPUTE)
            store_rows(dk, dkt, own, live, features, DK)
        if A:
            grad_own = load_rows(du, queries, live, channels, D, COMPUTE)
            owed = tl.dot(tl.trans(share[:, None] * p), grad_own, input_precision=PRECISION, out_dtype=COMPUTE)
            store_rows(dv, owed, own, live, channels, D)
        if SCORED:
            far = head * weight_rows * BLOCK + (block * width).to(tl.int64) * BLOCK + r
            for c in range(begin, end):
                if STRIDED:
                    offset = tl.load(offsets + c)
                    reads = live & (local >= offset) & (r < offset)
                    query = load_rows(q, queries, live, features, DK, COMPUTE)
                    key = load_rows(k, own - offset, reads, features, DK, COMPUTE)
                    weight = share * tl.exp(tl.sum(query * key, 1) * scale - largest) * inv
                    weight = tl.where(reads, weight, 0.0)
                    grad = load_rows(du, queries, live, channels, D, COMPUTE)
                    one = tl.sum(grad * load_rows(v, own - offset, reads, channels, D, COMPUTE), 1)
                    one = tl.where(reads, weight * (one - delta) * scale, 0.0)
                    dqt += one[:, None] * key
                    tl.store(far_slopes + far + c * BLOCK, one)
                    if A:
                        tl.store(far_weights + far + c * BLOCK, weight)
                else:
                    entry = c * TILE + k_rows
                    source = tl.load(sources + entry)
                    valid = source >= 0
                    reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
                    row = base + source
                    st = scores_of(q, queries, live, k, row, valid, scale, BLOCK, TILE, DK, chunk_k, COMPUTE, EXACT)
                    weight2 = tl.where(reads2, tl.exp(st - largest[:, None]) * (inv * share)[:, None], 0.0)
                    term = scores_of(du, queries, live, v, row, valid, 1.0, BLOCK, TILE, D, chunk_v, COMPUTE, PRECISION)
                    term = tl.where(reads2, weight2 * (term - delta[:, None]) * scale, 0.0)
                    key = load_rows(k, row, valid, features, DK, COMPUTE)
                    dqt += tl.dot(term, key, input_precision=PRECISION, out_dtype=COMPUTE)
                    at = ((tile0 + c - begin) * TILE + k_rows).to(tl.int64) + head * entries_per_head
                    query = load_rows(q, queries, live, features, DK, COMPUTE)
                    more = tl.dot(tl.trans(term), query, input_precision=PRECISION, out_dtype=COMPUTE)
                    store_rows(partial_k, more, at, valid, features, DK)
                    if A:
                        grad = load_rows(du, queries, live, channels, D, COMPUTE)
                        passed = tl.dot(tl.trans(weight2), grad, input_precision=PRECISION, out_dtype=COMPUTE)
                        store_rows(partial_v, passed, at, valid, channels, D)
            store_rows(dq, dqt, queries, live, features, DK)
    else:  # A is the diagonal
        grad = load_rows(du, queries, live, channels, D, COMPUTE)
        delta = tl.sum(grad * load_rows(v, own, live, channels, D, COMPUTE), 1)
        store_rows(dv, share[:, None] * grad, own, live, channels, D)
    if A:
        tl.store(dgate + queries, -delta, mask=gated)
    else:
        total = tl.load(dgate + queries, mask=gated, other=0.0) + delta
        tl.store(dgate + queries, tl.where(feeds, total, 0.0), mask=gated)


@triton.jit(
    do_not_specialize=["new", "known", "span_count", "weight_rows", "entries_per_head", "width", "recurrent"],
)
def collect(
    dka, dkb, dx, near_ka, near_kb, near_x, partial_ka, partial_kb, partial_x,
    far_a, far_b, far_weights, qa, qb, du, offsets, spans, entry_begins, entries,
    new, known, span_count, weight_rows, entries_per_head, width, recurrent,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, BLOCK: tl.constexpr,
    STRIDED: tl.constexpr, DIRECT: tl.constexpr, SCORED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """What rows are owed by their readers in later blocks, and by those of their own: gradients of keys and values."""
    span = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first = tl.load(spans + span)
    local0 = tl.load(spans + span_count + span)
    size = tl.load(spans + 2 * span_count + span)
    first_block = tl.load(spans + 3 * span_count + span)
    count = tl.load(spans + 4 * span_count + span)
    first_entry = tl.load(spans + 5 * span_count + span)
    entry_count = tl.load(spans + 6 * span_count + span)
    r = tl.arange(0, BLOCK)
    live = r < size
    rows = first + r
    local = local0 + r
    fresh = live & (local >= known)
    channels = tl.arange(0, BD)
    features = tl.arange(0, BDK)
    row0 = head * (known + new)
    new0 = head * new
    base = first - local0  # of the sequence, among new rows: known ones come with one sequence only
    du = after_known(du, head, new, known, recurrent, D)
    if DIRECT:
        for_ka = load_rows(near_ka + row0 * DK, rows, fresh, features, DK, COMPUTE)
        for_x = load_rows(near_x + row0 * D, rows, fresh, channels, D, COMPUTE)
    if SCORED:
        for_kb = load_rows(near_kb + row0 * DK, rows, fresh, features, DK, COMPUTE)
    if STRIDED:
        for c in range(width):
            offset = tl.load(offsets + c)
            reader = local + offset - known  # among the new rows of the sequence
            reads = live & (local < known + count - offset) & (reader >= 0) & (reader % BLOCK < offset)
            far = ((first_block + reader // BLOCK) * width + c).to(tl.int64) * BLOCK + reader % BLOCK
            far += head * weight_rows * BLOCK
            if DIRECT:
                a = tl.load(far_a + far, mask=reads, other=0.0)
                for_ka += a[:, None] * load_rows(qa + new0 * DK, base + reader, reads, features, DK, COMPUTE)
                w = tl.load(far_weights + far, mask=reads, other=0.0)
                for_x += w[:, None] * load_rows(du, base + reader, reads, channels, D, COMPUTE)
            if SCORED:
                b = tl.load(far_b + far, mask=reads, other=0.0)
                for_kb += b[:, None] * load_rows(qb + new0 * DK, base + reader, reads, features, DK, COMPUTE)
    else:
        begin = tl.load(entry_begins + local, mask=live, other=0)
        end = tl.load(entry_begins + local + 1, mask=live, other=0)
        for step in range(tl.max(end - begin, 0)):
            entry = tl.load(entries + begin + step, mask=begin + step < end, other=2147483647)
            reads = entry < entry_count
            at = head * entries_per_head + first_entry + tl.where(reads, entry, 0)
            if DIRECT:
                for_ka += load_rows(partial_ka, at, reads, features, DK, COMPUTE)
                for_x += load_rows(partial_x, at, reads, channels, D, COMPUTE)
            if SCORED:
                for_kb += load_rows(partial_kb, at, reads, features, DK, COMPUTE)
    if DIRECT:
        store_rows(dka + row0 * DK, for_ka, rows, live, features, DK)
        store_rows(dx + row0 * D, for_x, rows, live, channels, D)
    if SCORED:
        store_rows(dkb + row0 * DK, for_kb, rows, live, features, DK)
