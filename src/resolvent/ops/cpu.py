"""The fast backend for a CPU: Numba kernels over sequences and heads, driven by a pool of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops import cpu_solve, portable
from resolvent.ops.cpu_backward import backward
from resolvent.ops.cpu_decode import decode, keep
from resolvent.ops.cpu_forward import STATS, forward
from resolvent.ops.memory import empty_like
from resolvent.ops.rows import Rows, Table
from resolvent.ops.vectors import UNIT
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers

_WORTH_THREADS = 4096  # reads × heads of a single token, below which waking a thread costs more than it saves
_NOTHING = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}


@dataclass(frozen=True, eq=False)
class Plan:
    """Who reads whom, as the kernels want it: strides, or a table where reads are rounded. See `cpu_forward.py`."""

    offsets: Integers
    table: Table
    widths: Integers
    within: Integers
    last_reader: Integers
    cuts: Integers
    most: int


def plan(where: Rows) -> Plan:
    """Kept with the rows themselves: to look it up by value would take longer than a short sequence."""
    found = where.__dict__.get("_cpu_plan")
    if found is None:
        found = where.__dict__["_cpu_plan"] = _plan(where)
    return found


def _plan(where: Rows) -> Plan:
    none = np.empty(0, dtype=np.int64)
    cuts = np.array(where.cuts, dtype=np.int64)
    if where.shifted:
        within = np.searchsorted(where.offsets, np.arange(where.longest + 1), side="right")
        widths = within[where.known : where.longest]
        no_table = np.empty((0, 0), dtype=np.int32)
        return Plan(where.offsets, no_table, widths, within, none, cuts, int(widths.max(initial=0)))
    table = np.ascontiguousarray(where.local_table)
    widths = (table >= 0).sum(1)
    return Plan(none, table, widths, none, where.last_reader, cuts, int(widths.max(initial=0)))


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    where: Rows, scale: float, y_known: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`reference.mix`, fused. float32 and float64 as they are; half precision is computed in float32."""
    parts = _parts(x, where)
    if parts > 1:
        return _in_parts(parts, x, (qa, ka, qb, kb, gate), where, scale, y_known)
    working = working_dtype(x)
    known = x.new_zeros((*x.shape[:2], where.known, x.shape[-1])) if y_known is None else y_known
    y, _ = _Mix.apply(*(t.to(working) for t in (x, qa, ka, qb, kb, gate, known)), where, scale)  # type: ignore[no-untyped-call]
    return y[:, :, where.known :].to(x.dtype)  # type: ignore[no-any-return]


def _parts(x: Tensor, where: Rows) -> int:
    """In how many parts to divide the rows of x, so that no thread is idle where sequences × heads are few."""
    jobs = x.shape[0] * x.shape[1] * (len(where.cuts) - 1)
    each = torch.get_num_threads() // max(jobs, 1)
    return gcd(each, x.shape[-1] // UNIT) if each > 1 and x.shape[-1] % UNIT == 0 else 1


def _in_parts(
    parts: int, x: Tensor, rest: tuple[Tensor, ...], where: Rows, scale: float, y_known: Tensor | None
) -> Tensor:
    """Parts of a head's channels as heads of their own, with the same weights: exact, gradients included, since these
    are sums over channels. Only the scores are computed in every part.
    """

    def divide(t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:3], parts, -1).movedim(-2, 2).flatten(1, 2)

    qa, ka, qb, kb, gate = (t[:, :, None].expand(*t.shape[:2], parts, *t.shape[2:]).flatten(1, 2) for t in rest)
    y = mix(divide(x), qa, ka, qb, kb, gate, where, scale, None if y_known is None else divide(y_known))
    return y.reshape(*x.shape[:2], parts, *y.shape[2:]).movedim(2, -2).flatten(-2)


def step(
    token: tuple[Tensor, ...], parts: dict[str, Tensor], pattern: Pattern, reads: Integers, write: int, scale: float
) -> Tensor:
    """One token out of a cache whose parts lie in memory as the kernel wants them; see `can_step`."""
    x, dk, gate = token[0], token[1].shape[-1], token[5]
    heads, groups, d = gate.shape[0] * gate.shape[1], x.shape[0] * x.shape[1], x.shape[-1]
    y = x.new_empty((*gate.shape, d))
    kept = [parts.get(name, _NOTHING[x.dtype]) for name in ("values", "keys_a", "outputs", "keys_b")]
    slots = max(part.shape[2] for part in parts.values()) if parts else 0
    arrays = [t.reshape(-1).numpy() for t in (*token, *kept, y)]
    sizes, direct, scored = (d, dk, _span(d, x), _span(dk, x)), pattern.direct == "all", "keys_b" in parts
    share = heads // max(groups, 1)
    settings = (reads, write, slots, share, *sizes, _scalar(x, scale), direct, pattern.recurrent, scored)
    room = (len(reads) // UNIT + 2) * UNIT

    def work(first: int, last: int) -> None:
        scratch = np.empty(room + 2, dtype=arrays[0].dtype)
        decode(*arrays, *settings, scratch, scratch[room:], first, last)

    if len(reads) * heads < _WORTH_THREADS:
        work(0, heads)
    else:
        in_threads(work, heads, (0, 1))
    if share > 1 and write >= 0:
        x_, _, ka, _, kb, _, values, keys_a, _, keys_b, _ = arrays
        keep(x_, ka, kb, values, keys_a, keys_b, groups, write, slots, *sizes, direct, scored)
    return y


def can_step(x: Tensor, key_dim: int, parts: dict[str, Tensor]) -> bool:
    """Whether the kernel takes rows as they lie: whole units of float32 or float64, next to each other."""
    whole = x.shape[-1] % UNIT == 0 and key_dim % UNIT == 0 and x.dtype in (torch.float32, torch.float64)
    return whole and all(part.is_contiguous() and part.dtype == x.dtype for part in parts.values())


class _Mix(torch.autograd.Function):
    """Stores inputs, outputs and a few numbers per row; the backward sweep recomputes the weights."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        *inputs, y_known, where, scale = arguments
        return sweep(inputs, where, scale, y_known)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.where, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y, stats = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone wants to differentiate the gradient
            gradients = _differentiably(grad_y, inputs, y_known, ctx.where, ctx.scale)
        else:
            gradients = sweep_back(grad_y, y, stats, inputs, ctx.where, ctx.scale)
        return *gradients, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """One more dimension of independent sequences: it joins the batch."""
        *tensors, where, scale = arguments
        moved = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims, strict=False)
        ]
        y, stats = _Mix.apply(*(t.flatten(0, 1) for t in moved), where, scale)  # type: ignore[no-untyped-call]
        return (y.unflatten(0, moved[0].shape[:2]), stats.unflatten(0, moved[0].shape[:2])), (0, 0)


def _differentiably(
    grad_y: Tensor, inputs: Sequence[Tensor], y_known: Tensor, where: Rows, scale: float
) -> tuple[Tensor, ...]:
    """The gradient by the torch backend, which can be differentiated any number of times."""
    known = where.known

    def run(x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, y_before: Tensor) -> Tensor:
        return portable.mix(x, qa, ka, qb, kb, gate, where, scale, y_before if known else None)

    pull = torch.func.vjp(run, *inputs, y_known)[1]
    *gradients, grad_known = pull(grad_y[:, :, known:, : y_known.shape[-1]])
    return *gradients, grad_known + grad_y[:, :, :known, : y_known.shape[-1]]


def sweep(inputs: Sequence[Tensor], where: Rows, scale: float, y_known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Outputs of all rows, those known first, and what the way back needs; float32 or float64."""
    *vectors, gate = (t.detach() for t in inputs)
    d = vectors[0].shape[-1]
    padded = [_whole_units(t) for t in vectors]
    y = empty_like(padded[0])
    if where.known and y_known is not None:
        y[:, :, : where.known] = _whole_units(y_known.detach())
    stats = gate.new_empty((*gate.shape, STATS)).zero_()  # not all are written, and none may be random
    run = _Run(where, padded[0], padded[1], scale)
    run(forward, [*padded, gate.contiguous(), y, stats], run.forward_scratch)
    return (y if y.shape[-1] == d else y[..., :d].contiguous()), stats


def sweep_back(
    grad_y: Tensor, y: Tensor, stats: Tensor, inputs: Sequence[Tensor], where: Rows, scale: float
) -> tuple[Tensor, ...]:
    """Gradients of the inputs and of the known outputs."""
    *vectors, gate = (t.detach() for t in inputs)
    d, dk = vectors[0].shape[-1], vectors[1].shape[-1]
    padded = [_whole_units(t) for t in vectors]
    x = padded[0]
    dx, dqa, dka, dqb, dkb = (empty_like(t) for t in padded)
    dgate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    dy_known = x.new_empty((*x.shape[:2], where.known, x.shape[-1]))
    run = _Run(where, x, padded[1], scale)
    if where.pattern.direct != "all":  # not written: A's single weight is 1
        dqa, dka = _zeros(dqa), _zeros(dka)
        dx[:, :, : where.known] = 0
    if not where.pattern.recurrent or run.plan.most <= 1:
        dqb, dkb = _zeros(dqb), _zeros(dkb)
    written = [dx, *(t if t.is_contiguous() else t[..., :0] for t in (dqa, dka, dqb, dkb)), dgate, dy_known]
    stored = [*padded, gate.contiguous(), _whole_units(y.detach()), stats, _whole_units(grad_y.detach())]
    run(backward, [*stored, *written], run.backward_scratch)
    return dx[..., :d], *(t[..., :dk] for t in (dqa, dka, dqb, dkb)), dgate, dy_known[..., :d]


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, where: Rows, y_known: Tensor | None = None) -> Tensor:
    """`reference.solve`, row by row but compiled."""
    working = working_dtype(x)
    known = x.new_zeros((*x.shape[:2], where.known, x.shape[-1])) if y_known is None else y_known
    given = alpha.new_empty((*alpha.shape[:-1], 0)) if beta is None else beta
    y: Tensor = _Solve.apply(*(t.to(working) for t in (x, alpha, given, known)), where)  # type: ignore[no-untyped-call]
    return y[:, :, where.known :].to(x.dtype)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        *tensors, y_known, where = arguments
        inputs = [t.detach().contiguous() for t in tensors]
        y = torch.empty_like(inputs[0])
        y[:, :, : where.known] = y_known
        _over_heads(cpu_solve.forward, [*inputs, y], where)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.where = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_solve_differentiably(grad_y, inputs, y_known, ctx.where), None
        saved = [t.detach().contiguous() for t in (*inputs, y)]
        gradients = [torch.empty_like(t).zero_() for t in saved[:3]]  # zeros_like would ask for untouched pages
        du = grad_y.detach().clone(memory_format=torch.contiguous_format)
        _over_heads(cpu_solve.backward, [*saved, du, *gradients], ctx.where)
        return *gradients, du[:, :, : ctx.where.known], None


def _solve_differentiably(grad_y: Tensor, inputs: Sequence[Tensor], y_known: Tensor, where: Rows) -> tuple[Tensor, ...]:
    known = where.known

    def run(x: Tensor, alpha: Tensor, beta: Tensor, y_before: Tensor) -> Tensor:
        feedback = beta if where.pattern.recurrent else None
        return portable.solve(x, alpha, feedback, where, y_before if known else None)

    pull = torch.func.vjp(run, *inputs, y_known)[1]
    *gradients, grad_known = pull(grad_y[:, :, known:])
    return *gradients, grad_known + grad_y[:, :, :known]


def _over_heads(kernel: Callable[..., None], tensors: list[Tensor], where: Rows) -> None:
    p, (x, alpha, beta) = plan(where), tensors[:3]
    arrays = [t.view(-1).numpy() for t in tensors]
    settings = [p.offsets, p.table, p.widths, p.cuts, where.known, x.shape[-1], alpha.shape[-1], beta.shape[-1]]
    settings += [where.pattern.direct == "all", where.pattern.recurrent]
    in_threads(lambda first, last: kernel(*arrays, *settings, first, last), x.shape[0] * x.shape[1], where.cuts)


class _Run:
    """One call of a kernel over all sequences and heads."""

    def __init__(self, where: Rows, x: Tensor, q: Tensor, scale: float) -> None:
        self.where, self.plan, self.like = where, plan(where), x
        self.heads, self.d, self.dk = x.shape[0] * x.shape[1], x.shape[-1], q.shape[-1]
        self.scale = _scalar(x, scale)
        # Wide rows and long sequences gain from large blocks, in which the windows of far strides overlap.
        if self.plan.most <= UNIT:
            self.block = 64 if where.longest <= 8192 else 512
        else:
            self.block = 256 if self.plan.most <= 96 else 1024
        self.group = UNIT
        self.block = min(self.block, -(-max(where.longest, 1) // UNIT) * UNIT)

    def __call__(self, kernel: Callable[..., None], tensors: list[Tensor], scratch: Callable[[], list[Any]]) -> None:
        p, where = self.plan, self.where
        arrays = [t.reshape(-1).numpy() for t in tensors]
        shape = [p.offsets, p.table, p.widths, *((p.within, p.last_reader) if kernel is backward else ()), p.cuts]
        shape += [
            where.known,
            p.most,
            self.d,
            self.dk,
            _span(self.d, self.like),
            _span(self.dk, self.like),
        ]
        shape += [self.scale, where.pattern.direct == "all", where.pattern.recurrent, self.block, self.group]
        in_threads(lambda first, last: kernel(*arrays, *shape, *scratch(), first, last), self.heads, where.cuts)

    def forward_scratch(self) -> list[Any]:
        area = self.block * (-(-(self.plan.most + 1) // UNIT) * UNIT)
        return [*self._empty(area, area, self.block), np.empty(self.block, dtype=np.int64)]

    def backward_scratch(self) -> list[Any]:
        area = self.block * (-(-(self.plan.most + 1) // UNIT) * UNIT)
        kept = 0 if len(self.plan.last_reader) else self.plan.most * (self.where.longest + UNIT)
        a = kept if self.where.pattern.direct == "all" else 0
        b = kept if self.where.pattern.recurrent else 0
        scored = b if self.plan.most > 1 else 0
        counts = [np.empty(self.block, dtype=np.int64) for _ in range(2)]
        blocks = self._empty(*[area] * 4, *[self.block] * 3)
        return [*blocks, *counts, *self._empty(self.where.longest * self.d, a, b, a, scored)]

    def _empty(self, *sizes: int) -> list[Any]:
        return [self.like.new_empty(size).numpy() for size in sizes]


def in_threads(work: Callable[[int, int], None], heads: int, cuts: tuple[int, ...]) -> None:
    """Run work(first, last) over all jobs, heads × sequences, in as many threads as torch would use."""
    lengths = np.diff(cuts)
    jobs = heads * len(lengths)
    parts = min(torch.get_num_threads(), jobs)
    if parts <= 1:
        if jobs:
            work(0, jobs)
        return
    if len(lengths) == 1:
        edges = [jobs * part // parts for part in range(parts + 1)]
    else:  # as equal in rows as whole sequences allow
        done = np.concatenate([[0], np.cumsum(np.tile(lengths, heads))])
        edges = np.searchsorted(done, done[-1] * np.arange(parts + 1) / parts).tolist()
        edges[-1] = jobs
    pool = _pool(os.getpid(), torch.get_num_threads())
    others = [pool.submit(work, first, last) for first, last in pairwise(edges[1:])]
    try:
        work(edges[0], edges[1])  # this thread would only wait
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork, so a child makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"resolvent-{process}")


def working_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _scalar(like: Tensor, value: float) -> Any:
    """A NumPy scalar of the tensor's type: a Python float would make the kernels compute in double."""
    return np.float64(value) if like.dtype == torch.float64 else np.float32(value)


def _span(d: int, like: Tensor) -> tuple[int, ...]:
    """How many elements of a row are handled at once, as `vectors.py` wants it."""
    return _units(d, like.element_size())


@lru_cache
def _units(d: int, item_bytes: int) -> tuple[int, ...]:
    """Four registers of AVX-512 at most, and a divisor of d."""
    lanes = next(lanes for lanes in (64, 32, 16) if lanes <= 256 // item_bytes and d % lanes == 0)
    return (0,) * (lanes // UNIT)


def _whole_units(t: Tensor) -> Tensor:
    """Contiguous, the last dimension padded with zeros to whole units: those change no product."""
    rest = -t.shape[-1] % UNIT
    return pad(t, (0, rest)) if rest else t.contiguous()


def _zeros(like: Tensor) -> Tensor:
    return like.new_zeros(()).expand(like.shape)
