"""The fused operator: autograd around the kernels, forward and backward in one sweep each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.kernels import STATS, UNIT, BoundKernel, Kernel, Memory
from resolvent.ops.autograd import BatchedFunction, signed
from resolvent.ops.cpu.buffers import Argument, Array, argument, run_buffered
from resolvent.ops.cpu.layout import memory_of, padded_size, pair_span, scalar, scratch, span
from resolvent.ops.cpu.memory import empty_like
from resolvent.ops.cpu.plan import kernel_plan
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.differentiable import mix_gradients
from resolvent.ops.inputs import Inputs
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.patterns import Stage
from resolvent.patterns.strides import Integers

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

_FOLLOW = Kernel("follow.forward"), Kernel("follow.backward")
_forward, _shifted, _rounded = Kernel("forward.forward"), Kernel("shifted.backward"), Kernel("rounded.backward")
_scatter = Kernel("scatter.backward")
_LARGEST_AREA = 1 << 21  # weights of a block's rows that are kept at once, where rows are very wide


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    splits = _channel_splits(inputs.x, rows)
    if splits > 1:
        return _in_splits(splits, inputs, rows, scale, y_known)
    inputs = _without_stand_ins(inputs, rows)
    x = inputs.x
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known.to(x.dtype)
    y: Tensor = _Mix.apply(*inputs, known, rows, scale, torch.is_grad_enabled())[0]  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :]


def _without_stand_ins(inputs: Inputs, rows: Rows) -> Inputs:
    """Where queries or keys do not matter, another input stands for them: it is not to add up zeros of its own size."""
    used = (*_used(rows), True)
    kept = [
        t if used[number] or all(t is not before for before in inputs[:number]) else t.detach()
        for number, t in enumerate(inputs)
    ]
    return Inputs(*kept)


def _used(rows: Rows) -> tuple[bool, ...]:
    """Which of x, qa, ka, qb, kb matter: over a single source, a softmax is 1 whatever the scores."""
    a = rows.pattern.direct == "all"
    b = rows.pattern.recurrent and rows.plan(kernel_plan).widest > 1
    return True, a, a, b, b


def _kernels(rows: Rows) -> tuple[Kernel, Kernel]:
    if rows.general:
        return _forward, _scatter
    if not rows.shifted:
        return _forward, _rounded
    return _FOLLOW if follows(rows) else (_forward, _shifted)


def follows(rows: Rows) -> bool:
    """Whether rows read the output before them, and nothing else."""
    recurrent = rows.pattern.recurrent and rows.pattern.direct != "all"
    return recurrent and rows.shifted and (rows.longest == 1 or rows.offsets.tolist() == [1])


def _channel_splits(x: Tensor, rows: Rows) -> int:
    """Into how many splits to divide channels, so that no thread is idle where sequences × heads are few."""
    jobs = x.shape[0] * x.shape[1] * (len(rows.cuts) - 1)
    each = torch.get_num_threads() // jobs if x.numel() else 1
    return gcd(each, x.shape[-1] // UNIT) if each > 1 and x.shape[-1] % UNIT == 0 else 1


def _in_splits(splits: int, inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None) -> Tensor:
    """Splits of a head's channels as heads of their own, with the same weights: exact, gradients included, since these
    are sums over channels. Only the scores are computed in every split.
    """

    def divide(t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:3], splits, t.shape[3] // splits).movedim(-2, 2).flatten(1, 2)

    x, *rest = inputs
    qa, ka, qb, kb, gate = (t[:, :, None].expand(*t.shape[:2], splits, *t.shape[2:]).flatten(1, 2) for t in rest)
    divided = Inputs(divide(x), qa, ka, qb, kb, gate)
    y = mix(divided, rows, scale, None if y_known is None else divide(y_known))
    return y.reshape(*x.shape[:2], splits, *y.shape[2:]).movedim(2, -2).flatten(-2)


class _Mix(BatchedFunction):
    """Saves inputs, outputs and a few numbers per row; the backward sweep recomputes the weights."""

    @staticmethod
    @signed
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *inputs, y_known, rows, scale, differentiable = arguments
        return forward(inputs, rows, scale, y_known, differentiable=differentiable)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.rows, ctx.scale, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y, rest, stats = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone wants to differentiate the gradient
            gradients = mix_gradients(grad_y, inputs, y_known, ctx.rows, ctx.scale)
        else:
            gradients = backward(grad_y, (y, rest, stats), inputs, ctx.rows, ctx.scale)
        return *gradients, None, None, None


def forward(
    inputs: Sequence[Tensor], rows: Rows, scale: float, y_known: Tensor | None = None, *, differentiable: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of all rows, those known first, and what the way back needs besides."""
    *vectors, gate = (t.detach().contiguous() for t in inputs)
    sweep = _Sweep(rows, vectors, scale)
    rest, stats = saved_like(inputs, rows.pattern)
    y, rest = empty_like(vectors[0]), empty_like(rest if differentiable else rest[:, :, :0])
    if rows.known and y_known is not None:
        y[:, :, : rows.known] = y_known.detach()
        rest[:, :, : rows.known] = 0
    terms = (y, rest) if rest.numel() else (y,)
    stats.zero_()  # not all are written, and none may be random
    written = [argument(*terms, read=rows.known > 0, written=True), stats]
    sweep.run(_kernels(rows)[0], [*sweep.reads(vectors), gate.to(stats.dtype), *written], sweep.forward_scratch)
    return y, rest, stats


def saved_like(inputs: Sequence[Tensor], pattern: Stage) -> tuple[Tensor, Tensor]:
    """What outputs in half precision lack of those that are fed back, and a few numbers of each row's softmax."""
    x, gate, dtype = inputs[0], inputs[5], compute_dtype(inputs[0])
    rounded = pattern.recurrent and x.dtype != dtype
    stats = gate.new_empty((*gate.shape, STATS), dtype=dtype)
    return x.new_empty((*x.shape[:2], x.shape[2] if rounded else 0, x.shape[3])), stats


def backward(
    grad_y: Tensor, saved: Sequence[Tensor], inputs: Sequence[Tensor], rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """Gradients of the inputs and of the known outputs, from those of all outputs; `saved` is what `forward` gave."""
    *vectors, gate = (t.detach().contiguous() for t in inputs)
    y, rest, stats, dy = (t.detach().contiguous() for t in (*saved, grad_y))
    sweep = _Sweep(rows, vectors, scale)
    gradients = [empty_like(t) if used else _zeros(t) for t, used in zip(vectors, sweep.used, strict=True)]
    dgate = torch.empty_like(gate, dtype=stats.dtype)
    dy_known = dy.new_empty((*dy.shape[:2], rows.known, dy.shape[-1]))
    terms = (y, rest) if rest.numel() else (y,)
    outputs = argument(*terms) if rows.pattern.recurrent else sweep.nothing
    arguments = [*sweep.reads(vectors), gate.to(stats.dtype), outputs, stats, argument(dy)]
    arguments += [*sweep.writes(gradients), dgate, argument(dy_known, read=False, written=True)]
    sweep.run(_kernels(rows)[1], arguments, sweep.scatter_scratch if rows.general else sweep.backward_scratch)
    if rows.pattern.direct != "all":
        gradients[0][:, :, : rows.known] = 0  # not written: A's single weight is that of the row itself
    return *gradients, dgate.to(gate.dtype), dy_known


class _Sweep:
    def __init__(self, rows: Rows, vectors: Sequence[Tensor], scale: float) -> None:
        x, q = vectors[:2]
        self.rows, self.plan, self.x = rows, rows.plan(kernel_plan), x
        self.heads, self.d, self.dk = x.shape[0] * x.shape[1], padded_size(x.shape[-1]), padded_size(q.shape[-1])
        self.scale, self.nothing = scalar(x, scale), x.new_empty((*x.shape[:2], 0, UNIT), dtype=compute_dtype(x))
        self.used = _used(rows)
        self.block, self.group = sweep_sizes(self.plan.widest, rows.longest, rounded=len(self.plan.last_reader) > 0)

    def reads(self, vectors: Sequence[Tensor]) -> list[Argument]:
        read = [argument(t) for t in vectors]
        x = read[0]
        unused = x[:, :, :0] if isinstance(x, Tensor) else self.nothing  # another dtype would be another kernel
        return [t if used else unused for t, used in zip(read, self.used, strict=True)]

    def writes(self, vectors: Sequence[Tensor]) -> list[Argument]:
        written = (argument(t, read=False, written=True) for t in vectors)
        return [t if used else self.nothing for t, used in zip(written, self.used, strict=True)]

    def run(self, kernel: Kernel, arguments: list[Argument], own_scratch: Callable[[], list[Memory]]) -> None:
        p, rows = self.plan, self.rows
        back = kernel in (_shifted, _rounded, _FOLLOW[1])
        shape = [*p.reads, *(p.readers if back else ())]
        sizes = [rows.known, p.widest, self.d, self.dk, span(self.d, self.x)]
        sizes += [*((pair_span(self.d, self.x),) if back else ()), span(self.dk, self.x)]
        sizes += [self.scale, rows.pattern.direct == "all", rows.pattern.recurrent, self.block, self.group]

        def bind(arrays: Sequence[Array | Memory], cuts: Integers) -> BoundKernel:
            return kernel.bind(*arrays, *shape, cuts, *sizes)

        tensors = [t for t in arguments if isinstance(t, Tensor)]
        if len(tensors) == len(arguments):
            in_threads(bind([memory_of(t) for t in tensors], p.cuts), self.heads, rows.cuts, own_scratch)
        else:
            run_buffered(bind, arguments, self.heads, rows, own_scratch)

    @property
    def _area(self) -> int:
        """Numbers in the columns of a block: `pitch_of` in `kernels/forward.py`, for the sources and the row itself."""
        return (self.block + 2 * UNIT) * (self.plan.widest + 1)

    def forward_scratch(self) -> list[Memory]:
        area = self._area
        return self._scratch(area, area, *[self.block] * 4, column=True)

    def backward_scratch(self) -> list[Memory]:
        area, rounded = self._area, len(self.plan.last_reader) > 0
        kept = area if rounded else self.plan.widest * (self.rows.longest + UNIT)
        a = kept if self.rows.pattern.direct == "all" else 0
        b = kept if self.rows.pattern.recurrent else 0
        slopes = (0, 0) if rounded else (a, b if self.plan.widest > 1 else 0)
        blocks = self._scratch(*[area] * 4, *[self.block] * 5, column=True)
        return [*blocks, *self._scratch(self.rows.longest * self.d, a, b, *slopes)]

    def scatter_scratch(self) -> list[Memory]:
        row = -(-(self.plan.widest + 1) // UNIT) * UNIT
        return self._scratch(*[row] * 4, self.rows.longest * self.d)

    def _scratch(self, *sizes: int, column: bool = False) -> list[Memory]:
        """Numbers; and integers, one for each row of a block."""
        kind = self.scale.dtype.str
        return scratch(*((kind, size) for size in sizes), *((("<i8", self.block),) if column else ()))


def sweep_sizes(widest: int, longest: int, *, rounded: bool) -> tuple[int, int]:
    """Rows of a block, and sources of all its rows that are taken at a time.

    Where rows are read as long as they live, these few are in the first-level cache, whatever the block. At fixed
    distances, wide rows and long sequences gain from large blocks, in which the windows of far strides overlap.
    """
    group = UNIT
    if rounded:
        block, group = 128, 4 * UNIT
    elif widest <= UNIT:
        block = 128 if longest <= 8192 else 512
    else:
        block = 512 if widest <= 96 else 2048
    most = _LARGEST_AREA // (widest + 1) // UNIT * UNIT
    return max(min(block, -(-longest // UNIT) * UNIT, most), UNIT), group


def _zeros(t: Tensor) -> Tensor:
    return t.new_zeros(()).expand(t.shape)
