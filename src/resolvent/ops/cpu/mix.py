"""The fused operator: autograd around the kernels, forward and backward in one sweep each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.kernels import STATS, UNIT, Kernel
from resolvent.ops import portable
from resolvent.ops.autograd import VmapInfo, map_in_front
from resolvent.ops.cpu.layout import as_array, padded_rows, scalar, span
from resolvent.ops.cpu.memory import empty_like
from resolvent.ops.cpu.plan import kernel_plan
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.inputs import Inputs
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

Array = npt.NDArray[np.generic]
_forward, _backward, _scatter = Kernel("forward.forward"), Kernel("backward.backward"), Kernel("scatter.backward")
_LARGEST_AREA = 1 << 21  # weights of a block's rows that are kept at once, where rows are very wide


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    splits = _channel_splits(inputs.x, rows)
    if splits > 1:
        return _in_splits(splits, inputs, rows, scale, y_known)
    x, dtype = inputs.x, compute_dtype(inputs.x)
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known
    y, _ = _Mix.apply(*(t.to(dtype) for t in (*inputs, known)), rows, scale)  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :].to(x.dtype)  # type: ignore[no-any-return]


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


class _Mix(torch.autograd.Function):
    """Saves inputs, outputs and a few numbers per row; the backward sweep recomputes the weights."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        *inputs, y_known, rows, scale = arguments
        return forward(inputs, rows, scale, y_known)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.rows, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y, stats = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone wants to differentiate the gradient
            gradients = _differentiable_backward(grad_y, inputs, y_known, ctx.rows, ctx.scale)
        else:
            gradients = backward(grad_y, y, stats, inputs, ctx.rows, ctx.scale)
        return *gradients, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int | None, ...], *arguments: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """One more dimension of independent sequences: it joins the batch."""
        *tensors, rows, scale = arguments
        moved = map_in_front(info, in_dims[: len(tensors)], tensors)
        y, stats = _Mix.apply(*(t.flatten(0, 1) for t in moved), rows, scale)  # type: ignore[no-untyped-call]
        return (y.unflatten(0, moved[0].shape[:2]), stats.unflatten(0, moved[0].shape[:2])), (0, 0)


def _differentiable_backward(
    grad_y: Tensor, inputs: Sequence[Tensor], y_known: Tensor, rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """The gradient by the portable backend, which can be differentiated any number of times."""
    known = rows.known

    def run(*tensors: Tensor) -> Tensor:
        return portable.mix(Inputs(*tensors[:6]), rows, scale, tensors[6] if known else None)

    pull = torch.func.vjp(run, *inputs, y_known)[1]
    *gradients, grad_known = pull(grad_y[:, :, known:, : y_known.shape[-1]])
    return *gradients, grad_known + grad_y[:, :, :known, : y_known.shape[-1]]


def forward(inputs: Sequence[Tensor], rows: Rows, scale: float, y_known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Outputs of all rows, those known first, and what the way back needs; float32 or float64."""
    *vectors, gate = (t.detach() for t in inputs)
    d = vectors[0].shape[-1]
    padded = [padded_rows(t) for t in vectors]
    y = empty_like(padded[0])
    if rows.known and y_known is not None:
        y[:, :, : rows.known] = padded_rows(y_known.detach())
    stats = saved_like(inputs).zero_()  # not all are written, and none may be random
    sweep = _Sweep(rows, padded[0], padded[1], scale)
    sweep.run(_forward, [*padded, gate.contiguous(), y, stats], sweep.forward_scratch)
    return (y if y.shape[-1] == d else y[..., :d].contiguous()), stats


def saved_like(inputs: Sequence[Tensor]) -> Tensor:
    """A few numbers of each row's softmax."""
    gate = inputs[5]
    return gate.new_empty((*gate.shape, STATS))


def backward(
    grad_y: Tensor, y: Tensor, saved: Tensor, inputs: Sequence[Tensor], rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """Gradients of the inputs and of the known outputs."""
    *vectors, gate = (t.detach() for t in inputs)
    d, dk = vectors[0].shape[-1], vectors[1].shape[-1]
    padded = [padded_rows(t) for t in vectors]
    x = padded[0]
    dx, dqa, dka, dqb, dkb = (empty_like(t) for t in padded)
    dgate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    dy_known = x.new_empty((*x.shape[:2], rows.known, x.shape[-1]))
    sweep = _Sweep(rows, x, padded[1], scale)
    if rows.pattern.direct != "all":  # not written: A's single weight is 1
        dqa, dka = _zeros(dqa), _zeros(dka)
        dx[:, :, : rows.known] = 0
    if not rows.pattern.recurrent or sweep.plan.widest <= 1:
        dqb, dkb = _zeros(dqb), _zeros(dkb)
    written = [dx, *(t if t.is_contiguous() else t[..., :0] for t in (dqa, dka, dqb, dkb)), dgate, dy_known]
    stored = [*padded, gate.contiguous(), padded_rows(y.detach()), saved, padded_rows(grad_y.detach())]
    if rows.general:
        sweep.run(_scatter, [*stored, *written], sweep.scatter_scratch)
    else:
        sweep.run(_backward, [*stored, *written], sweep.backward_scratch)
    return dx[..., :d], *(t[..., :dk] for t in (dqa, dka, dqb, dkb)), dgate, dy_known[..., :d]


class _Sweep:
    """One call of a kernel over all sequences and heads."""

    def __init__(self, rows: Rows, x: Tensor, q: Tensor, scale: float) -> None:
        self.rows, self.plan, self.x = rows, rows.plan(kernel_plan), x
        self.heads, self.d, self.dk = x.shape[0] * x.shape[1], x.shape[-1], q.shape[-1]
        self.scale = scalar(x, scale)
        # Wide rows and long sequences gain from large blocks, in which the windows of far strides overlap.
        if self.plan.widest <= UNIT:
            self.block = 128 if rows.longest <= 8192 else 512
        else:
            self.block = 512 if self.plan.widest <= 96 else 2048
        self.group = UNIT
        most = _LARGEST_AREA // (self.plan.widest + 1) // UNIT * UNIT
        self.block = max(min(self.block, -(-rows.longest // UNIT) * UNIT, most), UNIT)

    def run(self, kernel: Kernel, tensors: list[Tensor], scratch: Callable[[], list[Array]]) -> None:
        p, rows = self.plan, self.rows
        arrays = [as_array(t) for t in tensors]
        back = kernel is _backward
        shape = [p.offsets, p.table, p.starts, p.widths, *((p.within, p.last_reader) if back else ())]
        shape += [p.cuts, rows.known]
        shape += [p.widest, self.d, self.dk, span(self.d, self.x), span(self.dk, self.x)]
        shape += [self.scale, rows.pattern.direct == "all", rows.pattern.recurrent, self.block, self.group]
        in_threads(kernel.bind(*arrays, *shape), self.heads, rows.cuts, scratch)

    def forward_scratch(self) -> list[Array]:
        area = self.block * (-(-(self.plan.widest + 1) // UNIT) * UNIT)
        return [*self._empty(area, area, self.block), np.empty(self.block, dtype=np.int64)]

    def backward_scratch(self) -> list[Array]:
        area = self.block * (-(-(self.plan.widest + 1) // UNIT) * UNIT)
        kept = 0 if len(self.plan.last_reader) else self.plan.widest * (self.rows.longest + UNIT)
        a = kept if self.rows.pattern.direct == "all" else 0
        b = kept if self.rows.pattern.recurrent else 0
        scored = b if self.plan.widest > 1 else 0
        counts = [np.empty(self.block, dtype=np.int64) for _ in range(2)]
        blocks = self._empty(*[area] * 4, *[self.block] * 3)
        return [*blocks, *counts, *self._empty(self.rows.longest * self.d, a, b, a, scored)]

    def scatter_scratch(self) -> list[Array]:
        row = -(-(self.plan.widest + 1) // UNIT) * UNIT
        return self._empty(*[row] * 4, 1, 1, self.rows.longest * self.d)

    def _empty(self, *sizes: int) -> list[Array]:
        return [np.empty(size, dtype=self.scale.dtype) for size in sizes]


def _zeros(t: Tensor) -> Tensor:
    return t.new_zeros(()).expand(t.shape)
