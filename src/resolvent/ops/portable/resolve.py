"""The recurrence y = (I - B)^-1 u, block by block, n / BLOCK steps of a few launches each, and its transpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.autograd import BatchedFunction
from resolvent.ops.portable.edges import dots, expand_index, give, take
from resolvent.ops.portable.plan import EdgePlan
from resolvent.ops.precision import without_autocast

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context


# y = (I - B)^-1 u has the adjoint du = (I - B)^-T dy, dbeta_ij = <du_i, y_j>. The transposed solve z = (I - B)^-T u has
# du = (I - B)^-1 dz, dbeta_ij = <z_i, du_j>: the same two, the other way round.
class _Resolve(BatchedFunction):
    @staticmethod
    def forward(u: Tensor, beta: Tensor, p: EdgePlan, transposed: bool) -> Tensor:
        with without_autocast(u.device.type):
            return _Substitution(beta, p, transposed).run(u)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, EdgePlan, bool], output: Tensor) -> None:
        _, beta, ctx.plan, ctx.transposed = inputs
        ctx.save_for_backward(beta, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        beta, y = ctx.saved_tensors
        grad_u = resolve(grad, beta, ctx.plan, not ctx.transposed)
        if not ctx.needs_input_grad[1]:
            return grad_u, None, None, None
        reader, source = (y, grad_u) if ctx.transposed else (grad_u, y)
        return grad_u, dots(reader, pad(source, (0, 0, ctx.plan.known, 0)), ctx.plan), None, None


def resolve(u: Tensor, beta: Tensor, p: EdgePlan, transposed: bool = False) -> Tensor:
    result: Tensor = _Resolve.apply(u, beta, p, transposed)  # type: ignore[no-untyped-call]
    return result


class _Substitution:
    """Block by block. All that waits for no other block is done before: above all the inverses of diagonal blocks."""

    def __init__(self, beta: Tensor, p: EdgePlan, transposed: bool) -> None:
        self.plan, self.blocks, self.transposed = p, p.blocks, transposed
        beta = pad(beta, (0, 1, 0, p.blocks.row_count - p.new))
        self.far = beta.gather(-1, expand_index(beta, p.blocks.far))
        near = beta.gather(-1, expand_index(beta, p.blocks.near))
        near = near.reshape(*near.shape[:-2], len(p.blocks), p.blocks.size, p.blocks.size)
        eye = torch.eye(p.blocks.size, dtype=beta.dtype, device=beta.device)
        near = eye - (near.mT if transposed else near)
        self.inverse = torch.linalg.solve_triangular(near, eye, upper=transposed, unitriangular=True)

    def run(self, u: Tensor) -> Tensor:
        """Each block reads those done before; transposed, from the end, each gives to those it reads."""
        y = pad(u, (0, 0, 0, self.blocks.row_count - u.shape[-2] + 1))
        order = range(len(self.blocks))
        for block in reversed(order) if self.transposed else order:
            rows = self.blocks[block]
            right = y[..., rows, :] if self.transposed else self.pull(block, y)
            y[..., rows, :] = self.inverse[..., block, :, :] @ right
            if self.transposed:
                self.push(block, y)
        return y[..., : self.plan.new, :]

    def pull(self, block: int, y: Tensor) -> Tensor:
        """The right-hand side of a block: what it reads of all before it is known by now."""
        rows, width = self.blocks[block], self.blocks.widths[block]
        right = y[..., rows, :]
        if not width:
            return right
        if self.plan.wide:
            before = slice(0, rows.start)
            return right + self.far[..., rows, before] @ y[..., before, :]
        read = take(y, self.blocks.far_sources[rows, :width])
        return right + (self.far[..., rows, None, :width] @ read).squeeze(-2)

    def push(self, block: int, y: Tensor) -> None:
        """The transpose: what a block owes to those before it."""
        rows, width = self.blocks[block], self.blocks.widths[block]
        if width and self.plan.wide:
            before = slice(0, rows.start)
            y[..., before, :] += self.far[..., rows, before].mT @ y[..., rows, :]
        elif width:
            terms = self.far[..., rows, :width, None] * y[..., rows, None, :]
            give(y, self.blocks.far_sources[rows, :width], terms)
