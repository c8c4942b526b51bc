"""One decoded token: a launch that finds its slots itself, from a counter on the device, and writes the cache.

A program has one sequence and one group of heads that share keys: nothing else touches its rows of the cache, its
counter or its expiry times, so that no program waits for another, and a captured graph can be replayed.
"""

import triton
import triton.language as tl

from resolvent.ops.triton.tiles import safe

ALIVE = tl.constexpr(0)  # kinds of reads: slots are read until they expire
STRIDED = tl.constexpr(1)  # at fixed distances
LISTED = tl.constexpr(2)  # row by row


@triton.jit(do_not_specialize=["slots", "width", "capacity", "kind", "share", "x_share"])
def step(
    x, qa, ka, qb, kb, gate, y, values, keys_a, outputs, keys_b,
    counter, expiry, slot_of, last_reader, offsets, begins, positions, slots, width, capacity,
    kind, share, x_share, scale,
    D: tl.constexpr, DK: tl.constexpr, BD: tl.constexpr, BDK: tl.constexpr, TILE: tl.constexpr,
    DIRECT: tl.constexpr, RECURRENT: tl.constexpr, SCORED: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The heads of one group, of one sequence. Slots that are not read are not loaded: they may hold anything."""
    program = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BD)
    features = tl.arange(0, BDK)
    own_d = channels < D
    own_k = features < DK
    lanes = tl.arange(0, TILE)
    i = tl.load(counter + program)
    at = tl.minimum(i, capacity - 1)
    begin = i * 0
    count = begin + slots
    if kind == STRIDED:
        count = begin + width
    if kind == LISTED:
        begin = tl.load(begins + at)
        count = tl.load(begins + at + 1) - begin
    write = tl.load(slot_of + at)
    if i >= capacity:
        write = slots
    into = program * slots + write
    x_first = program * (share // x_share)  # inputs have as many heads as queries, or as keys
    ka_row = tl.load(ka + program * DK + features, mask=own_k, other=0.0)
    kb_row = tl.load(kb + program * DK + features, mask=own_k, other=0.0)
    for member in range(share):
        head = program * share + member
        xv = tl.load(x + (x_first + member // x_share) * D + channels, mask=own_d, other=0.0).to(COMPUTE)
        o = xv
        m_a = tl.sum(tl.zeros((BD,), dtype=COMPUTE), 0)
        total_a = m_a + 1.0
        m_b = m_a + float("-inf")
        total_b = m_a
        fed = tl.zeros((BD,), dtype=COMPUTE)
        if DIRECT:
            q_a = tl.load(qa + head * DK + features, mask=own_k, other=0.0).to(COMPUTE)
            m_a = tl.sum(q_a * ka_row.to(COMPUTE), 0) * scale
            total_a = tl.exp(m_a - m_a)
            o = xv * total_a
        if SCORED:
            q_b = tl.load(qb + head * DK + features, mask=own_k, other=0.0).to(COMPUTE)
        for first in range(0, count, TILE):
            lane = first + lanes
            if kind == ALIVE:
                slot = lane
                reads = lane < slots
                reads = reads & (tl.load(expiry + program * slots + lane, mask=reads, other=-1) >= i)
            elif kind == STRIDED:
                offset = tl.load(offsets + lane, mask=lane < count, other=2147483647)
                reads = offset <= i
                slot = tl.load(slot_of + i - offset, mask=reads, other=0)
            else:
                reads = lane < count
                source = tl.load(positions + begin + lane, mask=reads, other=0)
                slot = tl.load(slot_of + source, mask=reads, other=0)
            row = program * slots + slot
            if DIRECT:
                inside_k = reads[:, None] & own_k[None, :]
                key = tl.load(keys_a + row[:, None] * DK + features[None, :], mask=inside_k, other=0.0).to(COMPUTE)
                s = tl.where(reads, tl.sum(key * q_a[None, :], 1) * scale, float("-inf"))
                m_new = tl.maximum(m_a, tl.max(s, 0))
                p = tl.where(reads, tl.exp(s - m_new), 0.0)
                rescale = tl.exp(m_a - m_new)
                inside_d = reads[:, None] & own_d[None, :]
                value = tl.load(values + row[:, None] * D + channels[None, :], mask=inside_d, other=0.0).to(COMPUTE)
                o = o * rescale + tl.sum(p[:, None] * value, 0)
                total_a = total_a * rescale + tl.sum(p, 0)
                m_a = m_new
            if RECURRENT:
                if SCORED:
                    inside_k = reads[:, None] & own_k[None, :]
                    key = tl.load(keys_b + row[:, None] * DK + features[None, :], mask=inside_k, other=0.0).to(COMPUTE)
                    s = tl.where(reads, tl.sum(key * q_b[None, :], 1) * scale, float("-inf"))
                else:
                    s = tl.where(reads, 0.0, float("-inf")).to(COMPUTE)
                m_new = tl.maximum(m_b, tl.max(s, 0))
                p = tl.where(reads, tl.exp(s - safe(m_new)), 0.0)
                rescale = tl.exp(m_b - safe(m_new))
                inside_d = reads[:, None] & own_d[None, :]
                output_row = head * slots + slot
                output_at = outputs + output_row[:, None] * D + channels[None, :]
                output = tl.load(output_at, mask=inside_d, other=0.0).to(COMPUTE)
                fed = fed * rescale + tl.sum(p[:, None] * output, 0)
                total_b = total_b * rescale + tl.sum(p, 0)
                m_b = m_new
        result = o / total_a
        if RECURRENT:
            feeds = total_b != 0
            g = tl.where(feeds, tl.load(gate + head).to(COMPUTE), 0.0)
            result = (1.0 - g) * result + g * (fed / tl.where(feeds, total_b, 1.0))
        rounded = result.to(y.dtype.element_ty)
        tl.store(y + head * D + channels, rounded, mask=own_d)
        tl.debug_barrier()  # all have read what is overwritten now
        if RECURRENT:
            if (write >= 0) & (write < slots):  # a later token may read this one
                tl.store(outputs + (head * slots + write) * D + channels, rounded, mask=own_d)
    if (write >= 0) & (write < slots):
        if DIRECT:
            new_value = tl.load(x + x_first * D + channels, mask=own_d, other=0.0)
            tl.store(values + into * D + channels, new_value, mask=own_d)
            tl.store(keys_a + into * DK + features, ka_row, mask=own_k)
        if SCORED:
            tl.store(keys_b + into * DK + features, kb_row, mask=own_k)
        if kind == ALIVE:
            tl.store(expiry + into, tl.load(last_reader + at))
    tl.store(counter + program, i + 1)
