"""One token of every sequence through a whole stack of blocks, compiled by Numba: as fast as weights can be read.

A decoded token multiplies every weight once per sequence, so that it costs what it takes to read the weights. All
threads of a team go through the same blocks; of each matrix every thread has its own rows, so that results do not
depend on their number, and they meet between one product and the next. What is small each computes for itself.

Weights and caches are scattered in memory: tables of their addresses come in, a `BLOCK` for each block and a `GROUP`
for each group of heads.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import from_dtype, njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import get_itemsize, populate_array

from resolvent.disk_cache import cached_njit
from resolvent.kernels.decode import copy_elements, keep_rows, mix_head
from resolvent.kernels.layouts import BLOCK, CALL, GROUP
from resolvent.kernels.sizes import UNIT
from resolvent.kernels.vectors import fma_vectors, less, load, product, splat, store, total


def _arrays_of(kind):
    """A function that takes an address for an array; how long that is, its caller knows."""

    @intrinsic
    def array_at(typing, address):
        array_kind = types.Array(kind, 1, "C")

        def emit(context, builder, signature, arguments):
            array = context.make_array(array_kind)(context, builder)
            data = builder.inttoptr(arguments[0], context.get_data_type(kind).as_pointer())
            size = context.get_constant(types.intp, get_itemsize(context, array_kind))
            many = context.get_constant(types.intp, 1 << 40)
            populate_array(array, data=data, shape=[many], strides=[size], itemsize=size, meminfo=None)
            return array._getvalue()

        return array_kind(types.int64), emit

    return array_at


_floats, _integers = _arrays_of(types.float32), _arrays_of(types.int64)
_blocks, _groups, _calls = (_arrays_of(from_dtype(kind)) for kind in (BLOCK, GROUP, CALL))


@intrinsic
def _call(typing, address):
    """The integer that a function without arguments at this address returns; of none, nobody may ask."""

    def emit(context, builder, signature, arguments):
        function = ir.FunctionType(ir.IntType(32), []).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], function), [])

    return types.int32(types.int64), emit


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _wait(call):
    """For all other threads."""
    if call.barrier:
        _call(call.barrier)


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _share(rows, thread, threads):
    """The rows of a thread: whole units, but for the last."""
    units = (rows + UNIT - 1) // UNIT
    return units * thread // threads * UNIT, min(units * (thread + 1) // threads * UNIT, rows)


# In groups of four rows, for all sequences: weights come from memory for the first of them, from the cache for others.
@njit(error_model="numpy", _nrt=False)
def _linear(weight, bias, x, batch, k, out, pitch, at, add, first, last):
    """out[b, at + r] (+)= <weight[r], x[b]> + bias[r] for the rows first ≤ r < last."""
    unit, nil = (0,), np.float32(0)
    w, offsets = _floats(weight), _floats(bias)
    r = first
    while r < last:
        four = r + 4 <= last
        for b in range(batch):
            s0, s1, s2, s3 = splat(nil, unit), splat(nil, unit), splat(nil, unit), splat(nil, unit)
            for e in range(0, k, UNIT):
                row = load(x, np.uint64(b * k + e), unit)
                s0 = fma_vectors(load(w, np.uint64(r * k + e), unit), row, s0)
                if four:
                    s1 = fma_vectors(load(w, np.uint64((r + 1) * k + e), unit), row, s1)
                    s2 = fma_vectors(load(w, np.uint64((r + 2) * k + e), unit), row, s2)
                    s3 = fma_vectors(load(w, np.uint64((r + 3) * k + e), unit), row, s3)
            o = b * pitch + at + r
            _put(out, o, total(s0), offsets, bias, r, add)
            if four:
                _put(out, o + 1, total(s1), offsets, bias, r + 1, add)
                _put(out, o + 2, total(s2), offsets, bias, r + 2, add)
                _put(out, o + 3, total(s3), offsets, bias, r + 3, add)
        r += 4 if four else 1


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _put(out, o, value, offsets, bias, r, add):
    if bias:
        value += offsets[np.uint64(r)]
    out[np.uint64(o)] = out[np.uint64(o)] + value if add else value


@njit(error_model="numpy", _nrt=False)
def _normalize(x, batch, dim, weight, bias, eps, out):
    """Layer norm of each row."""
    unit = (0,)
    w, offsets = _floats(weight), _floats(bias)
    for b in range(batch):
        sums = splat(np.float32(0), unit)
        for e in range(0, dim, UNIT):
            sums = fma_vectors(splat(np.float32(1), unit), load(x, np.uint64(b * dim + e), unit), sums)
        mean = total(sums) / np.float32(dim)
        sums = splat(np.float32(0), unit)
        for e in range(0, dim, UNIT):
            centered = less(load(x, np.uint64(b * dim + e), unit), mean)
            sums = fma_vectors(centered, centered, sums)
        factor = np.float32(1) / np.float32(math.sqrt(total(sums) / np.float32(dim) + eps))
        for e in range(0, dim, UNIT):
            o = np.uint64(b * dim + e)
            scaled = product(product(less(load(x, o, unit), mean), splat(factor, unit)), load(w, np.uint64(e), unit))
            if bias:
                scaled = fma_vectors(splat(np.float32(1), unit), load(offsets, np.uint64(e), unit), scaled)
            store(out, o, scaled)


@njit(error_model="numpy", _nrt=False)
def _rotate(rows, batch, pitch, at, first, last, d, rotations, alike):
    """Pairs of the rows first … last - 1, which begin at `at`, turned by the cosine and sine of their positions."""
    for b in range(batch):
        turn = 0 if alike else b * d
        for r in range(first, last, 2):
            o, t = np.uint64(b * pitch + at + r), np.uint64(turn + r % d)
            left, right, cosine, sine = rows[o], rows[o + np.uint64(1)], rotations[t], rotations[t + np.uint64(1)]
            rows[o] = left * cosine - right * sine
            rows[o + np.uint64(1)] = left * sine + right * cosine


@njit(error_model="numpy", _nrt=False)
def _open_gates(rows, batch, pitch, at, heads, step, log_rate, given):
    """Scores of gates become gates: exp(-softplus(score + step) · rate), or the numbers given."""
    steps, rates = _floats(step), _floats(log_rate)
    for h in range(heads):
        for b in range(batch):
            o = np.uint64(b * pitch + at + h)
            if given:
                rows[o] = steps[np.uint64(h)]
            else:
                z = rows[o] + steps[np.uint64(h)]
                softplus = z if z > np.float32(20) else np.float32(math.log1p(math.exp(z)))
                rows[o] = np.float32(math.exp(-softplus * np.float32(math.exp(rates[np.uint64(h)]))))


@njit(error_model="numpy", _nrt=False)
def _gelu(rows, batch, pitch, first, last):
    for b in range(batch):
        for r in range(first, last):
            v = rows[np.uint64(b * pitch + r)]
            half = np.float32(0.5) * v
            rows[np.uint64(b * pitch + r)] = half + half * np.float32(math.erf(v * np.float32(0.7071067811865476)))


@njit(error_model="numpy", _nrt=False)
def _mix(group, call, gates_at, reads, begins, writes, size, scale, scratch, stats, first, last):
    """Heads first … last - 1 of a group, those of all sequences being numbered one after another."""
    rows, mixed, d, slots, share = _floats(call.rows), _floats(call.mixed), call.head_dim, group.slots, _sharing(group)
    values, keys_a = _floats(group.values), _floats(group.keys_a)
    outputs, keys_b = _floats(group.outputs), _floats(group.keys_b)
    direct, recurrent, scored = group.direct != 0, group.recurrent != 0, group.scored != 0
    for job in range(first, last):
        b, head = job // group.heads, job % group.heads
        plan, line = _plan_of(group, call, b), b * call.pitch
        own, base = job * slots, job // share * slots
        x_at = line + (group.first_shared + head // share) * d
        ka_at, kb_at = line + group.ka + head // share * d, line + group.kb + head // share * d
        y_at = (b * call.heads + group.first_head + head) * d
        mix_head(rows, x_at, rows, line + group.qa + head * d, rows, ka_at, rows, line + group.qb + head * d,
                 rows[np.uint64(line + gates_at + group.gate + head)], values, keys_a, outputs, keys_b,
                 base, own, (job + 1) // share * slots, mixed, y_at, reads, begins[plan], begins[plan + 1],
                 d, d, size, size, scale, direct, recurrent, scored, scratch, stats)  # fmt: skip
        write = writes[_plan_of(group, call, b, 0)]
        if write >= 0:
            if recurrent:
                copy_elements(mixed, y_at, outputs, (own + write) * d, d, size)
            if share == 1:
                keep_rows(rows, x_at, rows, ka_at, rows, kb_at, values, keys_a, keys_b, base + write, d, d, size, size,
                          direct, scored)  # fmt: skip


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _sharing(group):
    return group.heads // group.shared


@njit(error_model="numpy", _nrt=False, forceinline=True)
def _plan_of(group, call, b, ends=1):
    """Where sequence b stands among the beginnings of all plans, which have an end each; or among what has none."""
    return group.plan * (call.positions + ends) + (b if call.positions > 1 else 0)


@njit(error_model="numpy", _nrt=False)
def _keep_shared(group, call, writes, size):
    """Values and keys that heads share, after all of them have read."""
    rows, d = _floats(call.rows), call.head_dim
    values, keys_a, keys_b = _floats(group.values), _floats(group.keys_a), _floats(group.keys_b)
    for job in range(call.batch * group.shared):
        b, own = job // group.shared, job % group.shared
        write, line = writes[_plan_of(group, call, b, 0)], b * call.pitch
        if write >= 0:
            keep_rows(rows, line + (group.first_shared + own) * d, rows, line + group.ka + own * d, rows,
                      line + group.kb + own * d, values, keys_a, keys_b, job * group.slots + write, d, d, size, size,
                      group.direct != 0, group.scored != 0)  # fmt: skip


@njit(error_model="numpy", _nrt=False)
def _project(block, call, normed, rotations, thread, threads):
    """Values, scores and gates of a block, of which a thread has its rows, into `rows`."""
    rows, batch, dim, pitch, d = _floats(call.rows), call.batch, call.dim, call.pitch, call.head_dim
    scores_at = call.shared * d
    gates_at = scores_at + block.score_rows
    first, last = _share(scores_at, thread, threads)
    _linear(block.values, block.values_bias, normed, batch, dim, rows, pitch, 0, False, first, last)
    first, last = _share(block.score_rows, thread, threads)
    _linear(block.scores, block.scores_bias, normed, batch, dim, rows, pitch, scores_at, False, first, last)
    if call.rotated:
        _rotate(rows, batch, pitch, scores_at, first, last, d, rotations, call.positions == 1)
    if thread == threads - 1 and block.gates:
        if block.gate:
            _linear(block.gate, 0, normed, batch, dim, rows, pitch, gates_at, False, 0, block.gates)
        _open_gates(rows, batch, pitch, gates_at, block.gates, block.gate_step, block.gate_log_rate, block.gate == 0)


@njit(error_model="numpy", _nrt=False)
def _through(call, size, thread, threads):
    """What one thread does of a call."""
    batch, dim, d = call.batch, call.dim, call.head_dim
    blocks, groups, tokens = _blocks(call.blocks), _groups(call.groups), _integers(call.tokens)
    reads, begins, writes = _integers(call.reads), _integers(call.begins), _integers(call.writes)
    scale, eps = _floats(call.numbers)[0], _floats(call.numbers)[1]
    x, mixed, hidden, rotations = _floats(call.x), _floats(call.mixed), _floats(call.hidden), _floats(call.rotations)
    normed = _floats(call.normed + 4 * thread * batch * dim)
    scratch = _floats(call.scratch + 4 * thread * call.scratch_size)
    stats = _floats(call.scratch + 4 * (thread + 1) * call.scratch_size - 8)
    embeddings = _floats(call.embedding)
    for b in range(batch * thread // threads, batch * (thread + 1) // threads):
        copy_elements(embeddings, tokens[b] * dim, x, b * dim, dim, (0,))
    _wait(call)
    for layer in range(call.block_count):
        block = blocks[layer]
        _normalize(x, batch, dim, block.mixer_norm, block.mixer_norm_bias, eps, normed)
        _project(block, call, normed, rotations, thread, threads)
        _wait(call)
        for g in range(block.first_group, block.last_group):
            jobs, gates_at = batch * groups[g].heads, call.shared * d + block.score_rows
            _mix(groups[g], call, gates_at, reads, begins, writes, size, scale, scratch, stats,
                 jobs * thread // threads, jobs * (thread + 1) // threads)  # fmt: skip
        _wait(call)
        for g in range(block.first_group, block.last_group):
            if thread == 0 and _sharing(groups[g]) > 1:
                _keep_shared(groups[g], call, writes, size)
        first, last = _share(dim, thread, threads)
        _linear(block.output, block.output_bias, mixed, batch, call.heads * d, x, dim, 0, True, first, last)
        _wait(call)
        _normalize(x, batch, dim, block.mlp_norm, block.mlp_norm_bias, eps, normed)
        first, last = _share(call.inner, thread, threads)
        _linear(block.mlp_in, block.mlp_in_bias, normed, batch, dim, hidden, call.inner, 0, False, first, last)
        _gelu(hidden, batch, call.inner, first, last)
        _wait(call)
        first, last = _share(dim, thread, threads)
        _linear(block.mlp_out, block.mlp_out_bias, hidden, batch, call.inner, x, dim, 0, True, first, last)
        _wait(call)
    _normalize(x, batch, dim, call.norm, call.norm_bias, eps, normed)
    first, last = _share(call.vocabulary, thread, threads)
    _linear(call.embedding, 0, normed, batch, dim, _floats(call.logits), call.vocabulary, 0, False, first, last)


@cached_njit(nogil=True, error_model="numpy", _nrt=False)
def stack(address, size):
    """For every thread of a team to call, with the address of a `CALL`; `size` is the span in which heads are read.

    Lists of slots come as plans, one for each pattern: sequence b reads those from `begins[plan, b]` to
    `begins[plan, b + 1]`, and goes into `writes[plan, b]`; with one entry where all stand at one position, as
    `rotations` have. `rows` takes the projections of a block, `pitch` of each sequence: values, scores, gates.

    No Python runs between its beginning and its end: an interrupt there would leave threads waiting for another.
    """
    call = _calls(address)[0]
    if call.barrier:
        _through(call, size, _call(call.thread_number), _call(call.team_size))
    else:
        _through(call, size, 0, 1)
