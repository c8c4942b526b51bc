"""Explicit coefficients: the launches that take the place of softmaxes. Sweeps are those of the gated layer.

A row's coefficients are in the order of its sources, the nearest first. Near ones come first, and of those that are
read before the block, listed ones the latest first: so a source's column is the number of a row's sources after it.
"""

import triton
import triton.language as tl

from resolvent.ops.triton.tiles import (
    after_known,
    bits_to_mask,
    inverse_by_substitution,
    load_block,
    load_rows,
    product,
    readers_to_mask,
    scores_of,
    store_rows,
)


@triton.jit
def columns_near(mask):
    """Of the near reads of each row, how many lie after each: (rows, rows)."""
    ones = mask.to(tl.int32)
    return tl.sum(ones, 1)[:, None] - tl.cumsum(ones, 1)


@triton.jit
def columns_listed(mask, passed):
    """The same for a tile of listed reads, `passed` of which each row has had before."""
    ones = mask.to(tl.int32)
    return passed[:, None] + tl.cumsum(ones, 1) - ones


@triton.jit(do_not_specialize=["new", "known", "block_count", "weight_rows", "width", "alpha_width", "beta_width"])
def place(
    x, alpha, beta, y, y_exact, weights, inverses,
    near, reach, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, width, alpha_width, beta_width,
    D: tl.constexpr, BD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    STRIDED: tl.constexpr, DIRECT: tl.constexpr, RECURRENT: tl.constexpr, OUTPUT: tl.constexpr,
    COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of one head: A x, and weights and inverses of B; as `coefficients` does with its own."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first, number, size, tile0 = load_block(blocks, block, block_count)
    r = tl.arange(0, BLOCK)
    live = r < size
    own = known + first + r
    local = known + number * BLOCK + r
    base = first - number * BLOCK
    x += head * (known + new) * D
    y += head * (known + new) * D
    y_exact += head * (known + new) * D
    alpha_row = alpha + (head * new + first + r) * alpha_width
    beta_row = beta + (head * new + first + r) * beta_width
    begin = tl.load(lists + number)
    end = tl.load(lists + number + 1)
    if STRIDED:
        end = begin
        begin = begin * 0
    channels = tl.arange(0, BD)
    k_rows = tl.arange(0, TILE)
    mask = bits_to_mask(tl.load(near + number * BLOCK + r, mask=live, other=0), r)
    column = columns_near(mask)
    passed = tl.sum(mask.to(tl.int32), 1)
    w_head = weights + head * weight_rows * BLOCK

    if OUTPUT:
        xt = load_rows(x, own, live, channels, D, COMPUTE)
        own_weight = tl.load(alpha_row, mask=live, other=0.0).to(COMPUTE)
        o = own_weight[:, None] * xt
        if DIRECT:
            p = tl.load(alpha_row[:, None] + 1 + column, mask=mask, other=0.0).to(COMPUTE)
            o += product(p, xt, mask, PRECISION)
        if not (RECURRENT or DIRECT):
            store_rows(y, o, own, live, channels, D)
    if RECURRENT:
        n = tl.load(beta_row[:, None] + column, mask=mask, other=0.0).to(COMPUTE)
        total = tl.sum(n * 0.0, 1)
    else:
        total = tl.zeros((BLOCK,), dtype=COMPUTE)
    for c in range(begin, end):
        if STRIDED:
            offset = tl.load(offsets + c)
            reads = live & (local >= offset) & (r < offset)
            if OUTPUT and DIRECT:
                one = tl.load(alpha_row + 1 + c, mask=reads, other=0.0).to(COMPUTE)
                o += one[:, None] * load_rows(x, own - offset, reads, channels, D, COMPUTE)
            if RECURRENT:
                one = tl.load(beta_row + c, mask=reads, other=0.0).to(COMPUTE)
                total += one * 0.0
                tl.store(w_head + (block * width + c).to(tl.int64) * BLOCK + r, one)
        else:
            entry = c * TILE + k_rows
            source = tl.load(sources + entry)
            reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
            at = columns_listed(reads2, passed)
            passed += tl.sum(reads2.to(tl.int32), 1)
            if OUTPUT and DIRECT:
                pt = tl.load(alpha_row[:, None] + 1 + at, mask=reads2, other=0.0).to(COMPUTE)
                value = load_rows(x, base + source, source >= 0, channels, D, COMPUTE)
                o += product(pt, value, reads2, PRECISION)
            if RECURRENT:
                wt = tl.load(beta_row[:, None] + at, mask=reads2, other=0.0).to(COMPUTE)
                total += tl.sum(wt * 0.0, 1)
                tile = w_head + (tile0 + c - begin).to(tl.int64) * TILE * BLOCK
                tl.store(tile + r[:, None] * TILE + k_rows[None, :], wt)
    if (OUTPUT and DIRECT) and not RECURRENT:
        store_rows(y, o, own, live, channels, D)
    if RECURRENT:
        broken = total != 0  # rows that are NaN whatever they read
        n = tl.where(broken[:, None], 0.0, n)
        t = inverse_by_substitution(n, BLOCK)
        tl.store(inverses + (head * block_count + block) * BLOCK * BLOCK + r[:, None] * BLOCK + r[None, :], t)
        if OUTPUT:
            u = tl.where(broken[:, None], float("nan"), o)
            depends = bits_to_mask(tl.load(reach + number * BLOCK + r, mask=live, other=0), r)
            store_rows(y_exact, product(t, u, depends, PRECISION), own, live, channels, D)


@triton.jit(
    do_not_specialize=[
        "new",
        "known",
        "block_count",
        "weight_rows",
        "entries_per_head",
        "width",
        "columns",
        "recurrent",
    ],
)
def slopes_explicit(
    v, du, coefficients, gradients, dv, partial_v, far_weights,
    near, lists, sources, readers, offsets, blocks,
    new, known, block_count, weight_rows, entries_per_head, width, columns, recurrent,
    D: tl.constexpr, BD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STRIDED: tl.constexpr,
    A: tl.constexpr, READS: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block's coefficients, <dU_i, v_j>, and for A what its rows owe to the x they have read."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first, number, size, tile0 = load_block(blocks, block, block_count)
    r = tl.arange(0, BLOCK)
    live = r < size
    own = known + first + r
    local = known + number * BLOCK + r
    base = first - number * BLOCK
    v += head * (known + new) * D
    dv += head * (known + new) * D
    du = after_known(du, head, new, known, recurrent, D)
    begins = (head * new + first + r) * columns
    first_column: tl.constexpr = 1 if A else 0
    chunk: tl.constexpr = 32 if BD > 64 else BD
    channels = tl.arange(0, BD)
    k_rows = tl.arange(0, TILE)
    new_rows = first + r
    grad = load_rows(du, new_rows, live, channels, D, COMPUTE)
    if A:
        diagonal = tl.load(coefficients + begins, mask=live, other=0.0).to(COMPUTE)
        owed = diagonal[:, None] * grad
        tl.store(gradients + begins, tl.sum(grad * load_rows(v, own, live, channels, D, COMPUTE), 1), mask=live)
    if READS:
        begin = tl.load(lists + number)
        end = tl.load(lists + number + 1)
        if STRIDED:
            end = begin
            begin = begin * 0
        mask = bits_to_mask(tl.load(near + number * BLOCK + r, mask=live, other=0), r)
        passed = tl.sum(mask.to(tl.int32), 1)
        at = begins[:, None] + first_column + columns_near(mask)
        near_slopes = scores_of(du, new_rows, live, v, own, live, 1.0, BLOCK, BLOCK, D, chunk, COMPUTE, PRECISION)
        tl.store(gradients + at, near_slopes, mask=mask)
        if A:
            p = tl.load(coefficients + at, mask=mask, other=0.0).to(COMPUTE)
            owed += tl.dot(tl.trans(p), grad, input_precision=PRECISION, out_dtype=COMPUTE)
            store_rows(dv, owed, own, live, channels, D)
        for c in range(begin, end):
            if STRIDED:
                offset = tl.load(offsets + c)
                reads = live & (local >= offset) & (r < offset)
                one = tl.sum(grad * load_rows(v, own - offset, reads, channels, D, COMPUTE), 1)
                tl.store(gradients + begins + first_column + c, one, mask=reads)
                if A:
                    weight = tl.load(coefficients + begins + first_column + c, mask=reads, other=0.0).to(COMPUTE)
                    far = head * weight_rows * BLOCK + (block * width + c).to(tl.int64) * BLOCK + r
                    tl.store(far_weights + far, weight)
            else:
                entry = c * TILE + k_rows
                source = tl.load(sources + entry)
                reads2 = readers_to_mask(tl.load(readers + entry), r) & live[:, None]
                at_t = begins[:, None] + first_column + columns_listed(reads2, passed)
                passed += tl.sum(reads2.to(tl.int32), 1)
                listed = scores_of(
                    du, new_rows, live, v, base + source, source >= 0, 1.0, BLOCK, TILE, D, chunk, COMPUTE, PRECISION
                )
                tl.store(gradients + at_t, listed, mask=reads2)
                if A:
                    pt = tl.load(coefficients + at_t, mask=reads2, other=0.0).to(COMPUTE)
                    again = load_rows(du, new_rows, live, channels, D, COMPUTE)  # kept so long, it would spill
                    more = tl.dot(tl.trans(pt), again, input_precision=PRECISION, out_dtype=COMPUTE)
                    row = ((tile0 + c - begin) * TILE + k_rows).to(tl.int64) + head * entries_per_head
                    store_rows(partial_v, more, row, source >= 0, channels, D)
    else:  # A is the diagonal
        store_rows(dv, owed, own, live, channels, D)
