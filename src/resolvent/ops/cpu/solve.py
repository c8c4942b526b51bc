"""Explicit coefficients, row by row but compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.kernels import Kernel
from resolvent.ops.autograd import BatchedFunction, signed
from resolvent.ops.cpu.layout import as_array
from resolvent.ops.cpu.plan import kernel_plan
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.differentiable import solve_gradients
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

_forward, _backward = Kernel("solve.forward"), Kernel("solve.backward")


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.solve`."""
    dtype = compute_dtype(x)
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known
    feedback = alpha.new_empty((*alpha.shape[:-1], 0)) if beta is None else beta
    tensors = (t.to(dtype) for t in (x, alpha, feedback, known))
    y: Tensor = _Solve.apply(*tensors, rows)  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :].to(x.dtype)


class _Solve(BatchedFunction):
    @staticmethod
    @signed
    def forward(x: Tensor, alpha: Tensor, beta: Tensor, y_known: Tensor, rows: Rows) -> Tensor:
        inputs = [t.detach().contiguous() for t in (x, alpha, beta)]
        y = torch.empty_like(inputs[0])
        y[:, :, : rows.known] = y_known
        _over_heads(_forward, [*inputs, y], rows)
        return y

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Rows], output: Tensor) -> None:
        *tensors, ctx.rows = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *solve_gradients(grad_y, inputs, y_known, ctx.rows), None
        saved = [t.detach().contiguous() for t in (*inputs, y)]
        gradients = [torch.empty_like(t).zero_() for t in saved[:3]]  # zeros_like would ask for untouched pages
        du = grad_y.detach().clone(memory_format=torch.contiguous_format)
        _over_heads(_backward, [*saved, du, *gradients], ctx.rows)
        return *gradients, du[:, :, : ctx.rows.known], None


def _over_heads(kernel: Kernel, tensors: list[Tensor], rows: Rows) -> None:
    p, (x, alpha, beta) = rows.plan(kernel_plan), tensors[:3]
    arrays = [as_array(t) for t in tensors]
    settings = [p.offsets, p.table, p.starts, p.widths, p.cuts, rows.known]
    settings += [x.shape[-1], alpha.shape[-1], beta.shape[-1]]
    settings += [rows.pattern.direct == "all", rows.pattern.recurrent]
    in_threads(kernel.bind(*arrays, *settings), x.shape[0] * x.shape[1], rows.cuts)
