"""The trilinear form over a pattern's edges: scores, blends and their transposes, each the others' gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.autograd import BatchedFunction
from resolvent.ops.portable.plan import EdgePlan, Index
from resolvent.ops.precision import without_autocast

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context


# The form <w, q, k> = sum_ic w_ic <q_i, k_j>, over every row i and its c-th source j, is linear in each argument:
#     dots(q, k) = d/dw      (new, width)         the scores of every edge, 0 beyond a row's sources
#     blend(w, k) = d/dq     (new, D)             sum_c w_ic k_j
#     spread(w, q) = d/dk    (known + new, D)     the sum of w_ic q_i over the readers i of j
# Given a gradient for one of the three, put it where an argument is missing: the gradients of the other
# two are again among dots, blend and spread.
class _Form(BatchedFunction):
    @staticmethod
    def forward(missing: int, first: Tensor, second: Tensor, p: EdgePlan) -> Tensor:
        with without_autocast(first.device.type):
            return (_wide_form if p.wide else _sparse_form)(missing, first, second, p)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[int, Tensor, Tensor, EdgePlan], output: Tensor) -> None:  # noqa: ARG004
        ctx.missing, first, second, ctx.plan = inputs
        ctx.save_for_backward(first, second)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        arguments = list(ctx.saved_tensors)
        arguments.insert(ctx.missing, grad)
        gradients: list[Tensor | None] = []
        for argument in (argument for argument in range(3) if argument != ctx.missing):
            first, second = arguments[:argument] + arguments[argument + 1 :]
            needed = ctx.needs_input_grad[1 + len(gradients)]
            gradients.append(_form(argument, first, second, ctx.plan) if needed else None)
        return None, *gradients, None


def _form(missing: int, first: Tensor, second: Tensor, p: EdgePlan) -> Tensor:
    result: Tensor = _Form.apply(missing, first, second, p)  # type: ignore[no-untyped-call]
    return result


def dots(q: Tensor, k: Tensor, p: EdgePlan) -> Tensor:
    return _form(0, q, k, p)


def blend(w: Tensor, k: Tensor, p: EdgePlan) -> Tensor:
    return _form(1, w, k, p)


def spread(w: Tensor, q: Tensor, p: EdgePlan) -> Tensor:
    return _form(2, w, q, p)


def _sparse_form(missing: int, first: Tensor, second: Tensor, p: EdgePlan) -> Tensor:
    return (_sparse_dots, _sparse_blend, _sparse_spread)[missing](first, second, p)


def _sparse_dots(q: Tensor, k: Tensor, p: EdgePlan) -> Tensor:
    w = q.new_zeros((*q.shape[:-1], p.width))
    k = k if p.shifted else pad(k, (0, 0, 0, 1))
    for rows, columns, index in p.pieces(k):
        w[..., rows, columns] = (take(k, index) * q[..., rows, None, :]).sum(-1)
    return torch.where(p.valid, w, 0)


def _sparse_blend(w: Tensor, k: Tensor, p: EdgePlan) -> Tensor:
    q = k.new_zeros((*w.shape[:-1], k.shape[-1]))
    w, k = torch.where(p.valid, w, 0), k if p.shifted else pad(k, (0, 0, 0, 1))
    for rows, columns, index in p.pieces(k):
        if isinstance(index, slice):
            q[..., rows, :].addcmul_(k[..., index, :], w[..., rows, columns])
        else:
            q += (w[..., columns, None] * take(k, index)).sum(-2)
    return q


def _sparse_spread(w: Tensor, q: Tensor, p: EdgePlan) -> Tensor:
    k = q.new_zeros((*q.shape[:-2], p.known + p.new + 1, q.shape[-1]))
    w = torch.where(p.valid, w, 0)
    for rows, columns, index in p.pieces(k):
        if isinstance(index, slice):
            k[..., index, :].addcmul_(q[..., rows, :], w[..., rows, columns])
        else:
            give(k, index, w[..., columns, None] * q[..., None, :])
    return k[..., :-1, :]


def _wide_form(missing: int, first: Tensor, second: Tensor, p: EdgePlan) -> Tensor:
    """Products of matrices, where nearly every row reads nearly every other."""
    if missing == 0:
        scores = first @ pad(second, (0, 0, 0, 1)).mT
        return torch.where(p.valid, scores.gather(-1, expand_index(scores, p.sources)), 0)
    w = pad(first, (0, 1))
    w = w.gather(-1, expand_index(w, p.columns))
    return (w if missing == 1 else w.mT) @ second


def take(v: Tensor, index: Index) -> Tensor:
    """(..., rows, columns, D)."""
    if isinstance(index, slice):
        return v[..., index, None, :]
    return v.index_select(-2, index.flatten()).reshape(*v.shape[:-2], *index.shape, v.shape[-1])


def give(v: Tensor, index: Tensor, terms: Tensor) -> None:
    """The transpose of `take`, added to v."""
    v.index_add_(-2, index.flatten(), terms.flatten(-3, -2))


def expand_index(t: Tensor, index: Tensor) -> Tensor:
    """An index for the last two dimensions, repeated over the leading ones of t."""
    return index.expand(*t.shape[:-2], *index.shape)
