"""The backend for any device: plain torch operations, and no n × n matrix for a sparse pattern.

Two operations carry everything, and the gradient of each is made of the same two, so that derivatives of any order
exist: a form over the pattern's edges (`_Form`), and the recurrence itself (`_Resolve`), which goes block by block,
n / BLOCK steps of a few launches each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.heads import repeated
from resolvent.ops.portable_plan import Index, Plan, plan
from resolvent.ops.rows import Rows
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    where: Rows, scale: float, y_known: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`reference.mix`. float32 and float64 as they are; half precision is computed in float32."""
    working, p = _working_dtype(x), plan(where, x.device)
    qa, ka, qb, kb, gate = (t.to(working) for t in (qa, ka, qb, kb, gate))
    alpha = torch.ones_like(gate)[..., None]  # a softmax over one entry, whatever its score
    if where.pattern.direct == "all":
        own = (qa * ka[..., where.known :, :]).sum(-1, keepdim=True)
        alpha = softmax(torch.cat([own, dots(qa, ka, p)], dim=-1) * scale, p.direct)
    beta = None
    if where.pattern.recurrent:
        g = torch.where(p.feeds, gate, 0)[..., None]  # with nothing to feed back, all weight stays with A
        alpha = (1 - g) * alpha
        beta = g * (softmax(dots(qb, kb, p) * scale, p.valid) if p.width > 1 else p.valid.to(working))
    return _solve(x.to(working), alpha, beta, p, y_known).to(x.dtype)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, where: Rows, y_known: Tensor | None = None) -> Tensor:
    """`reference.solve`. What lies beyond a row's sources is replaced before anything is multiplied by it."""
    working, p = _working_dtype(x), plan(where, x.device)
    if where.pattern.direct == "all":
        alpha = torch.where(p.direct, alpha, 0)
    if beta is not None:
        beta = torch.where(p.valid, beta, 0).to(working)
    return _solve(x.to(working), alpha.to(working), beta, p, y_known).to(x.dtype)


def step(
    token: tuple[Tensor, ...], parts: dict[str, Tensor], pattern: Pattern, reads: Integers, write: int, scale: float
) -> Tensor:
    """One token, N = 1, out of a cache: it reads the slots `reads`, and its rows go into slot `write`."""
    token = tuple(t[:, :, 0] for t in token)
    working, heads = _working_dtype(token[0]), token[5].shape[1]
    x, qa, ka, qb, _, gate = (repeated(t.to(working), heads) for t in token)
    slots = torch.tensor(reads, device=x.device)
    kept = {name: repeated(part.index_select(2, slots).to(working), heads) for name, part in parts.items()}
    g = gate[..., None] if pattern.recurrent and len(reads) else torch.zeros_like(gate)[..., None]
    y = (1 - g) * x
    if pattern.direct == "all":
        scores = torch.cat([(qa * ka).sum(-1, keepdim=True), (qa[:, :, None] * kept["keys_a"]).sum(-1)], dim=-1)
        rows = torch.cat([x[:, :, None], kept["values"]], dim=2)
        y = (1 - g) * ((scores * scale).softmax(-1)[..., None] * rows).sum(2)
    if pattern.recurrent and len(reads):
        weights = torch.ones_like(kept["outputs"][..., 0])
        if "keys_b" in kept:
            weights = ((qb[:, :, None] * kept["keys_b"]).sum(-1) * scale).softmax(-1)
        y = y + g * (weights[..., None] * kept["outputs"]).sum(2)
    y = y.to(token[0].dtype)
    if write >= 0:
        for name, row in (("values", token[0]), ("keys_a", token[2]), ("outputs", y), ("keys_b", token[4])):
            if name in parts:
                parts[name][:, :, write] = row
    return y[:, :, None]


def _solve(x: Tensor, alpha: Tensor, beta: Tensor | None, p: Plan, y_known: Tensor | None) -> Tensor:
    """U = A x, what is known of y moved to the right-hand side, and the recurrence over the rest."""
    u = alpha[..., :1] * x[..., p.known :, :]
    if p.where.pattern.direct == "all" and p.width:
        u = u + _blend(alpha[..., 1:], x, p)
    if beta is None or not beta.numel():
        return u
    if y_known is not None and p.known:
        u = u + _blend(beta, pad(y_known.to(u.dtype), (0, 0, 0, p.new)), p)
    return resolve(u, beta, p) if p.new > 1 else u  # a single new row waits for no other


def softmax(scores: Tensor, valid: Tensor) -> Tensor:
    """Over the valid entries of each row, zero elsewhere; a row without any has no NaN to pass back."""
    weights = scores.masked_fill(~valid & valid.any(-1, keepdim=True), -torch.inf).softmax(-1)
    return torch.where(valid, weights, 0)


# The form <w, q, k> = sum_ic w_ic <q_i, k_j>, over every row i and its c-th source j, is linear in each argument:
#     dots(q, k) = d/dw      (new, width)         the scores of every edge, 0 beyond a row's sources
#     blend(w, k) = d/dq     (new, D)             sum_c w_ic k_j
#     spread(w, q) = d/dk    (known + new, D)     the sum of w_ic q_i over the readers i of j
# Given a gradient for one of the three, put it in the place of the argument that is missing: the gradients of the other
# two are again among dots, blend and spread.
class _Form(torch.autograd.Function):
    @staticmethod
    def forward(missing: int, first: Tensor, second: Tensor, p: Plan) -> Tensor:
        with _as_given(first):
            return (_wide_form if p.wide else _sparse_form)(missing, first, second, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[int, Tensor, Tensor, Plan], output: Tensor) -> None:  # noqa: ARG004
        ctx.missing, first, second, ctx.plan = inputs
        ctx.save_for_backward(first, second)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = list(ctx.saved_tensors)
        parts.insert(ctx.missing, grad)
        gradients: list[Tensor | None] = []
        for place in (place for place in range(3) if place != ctx.missing):
            first, second = parts[:place] + parts[place + 1 :]
            needed = ctx.needs_input_grad[1 + len(gradients)]
            gradients.append(_form(place, first, second, ctx.plan) if needed else None)
        return None, *gradients, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, missing: int, first: Tensor, second: Tensor, p: Plan) -> tuple[Tensor, int]:
        first, second = _in_front(info.batch_size, in_dims[1:3], [first, second])
        return _form(missing, first, second, p), 0


def _form(missing: int, first: Tensor, second: Tensor, p: Plan) -> Tensor:
    result: Tensor = _Form.apply(missing, first, second, p)  # type: ignore[no-untyped-call]
    return result


def dots(q: Tensor, k: Tensor, p: Plan) -> Tensor:
    return _form(0, q, k, p)


def _blend(w: Tensor, k: Tensor, p: Plan) -> Tensor:
    return _form(1, w, k, p)


def spread(w: Tensor, q: Tensor, p: Plan) -> Tensor:
    return _form(2, w, q, p)


def _sparse_form(missing: int, first: Tensor, second: Tensor, p: Plan) -> Tensor:
    return (_sparse_dots, _sparse_blend, _sparse_spread)[missing](first, second, p)


def _sparse_dots(q: Tensor, k: Tensor, p: Plan) -> Tensor:
    w = q.new_zeros((*q.shape[:-1], p.width))
    k = k if p.shifted else pad(k, (0, 0, 0, 1))
    for rows, columns, index in p.pieces(k):
        w[..., rows, columns] = (_take(k, index) * q[..., rows, None, :]).sum(-1)
    return torch.where(p.valid, w, 0)


def _sparse_blend(w: Tensor, k: Tensor, p: Plan) -> Tensor:
    q = k.new_zeros((*w.shape[:-1], k.shape[-1]))
    w, k = torch.where(p.valid, w, 0), k if p.shifted else pad(k, (0, 0, 0, 1))
    for rows, columns, index in p.pieces(k):
        if isinstance(index, slice):
            q[..., rows, :].addcmul_(k[..., index, :], w[..., rows, columns])
        else:
            q += (w[..., columns, None] * _take(k, index)).sum(-2)
    return q


def _sparse_spread(w: Tensor, q: Tensor, p: Plan) -> Tensor:
    k = q.new_zeros((*q.shape[:-2], p.known + p.new + 1, q.shape[-1]))
    w = torch.where(p.valid, w, 0)
    for rows, columns, index in p.pieces(k):
        if isinstance(index, slice):
            k[..., index, :].addcmul_(q[..., rows, :], w[..., rows, columns])
        else:
            _give(k, index, w[..., columns, None] * q[..., None, :])
    return k[..., :-1, :]


def _wide_form(missing: int, first: Tensor, second: Tensor, p: Plan) -> Tensor:
    """Products of matrices, where nearly every row reads nearly every other."""
    if missing == 0:
        scores = first @ pad(second, (0, 0, 0, 1)).mT
        return torch.where(p.valid, scores.gather(-1, _like(scores, p.sources)), 0)
    w = pad(first, (0, 1))
    w, pairs = w.gather(-1, _like(w, p.columns)), (p.columns < p.width).to(w.dtype)
    return _product(w, second, pairs) if missing == 1 else _product(w.mT, second, pairs.mT)


def _product(matrix: Tensor, v: Tensor, reads: Tensor) -> Tensor:
    """Their product, but zero times NaN is NaN only where `reads` is one: nothing outside the pattern is ever seen."""
    broken = (v * 0).nan_to_num(nan=1)
    return (matrix @ v.nan_to_num(0, 0, 0)).masked_fill(reads @ broken > 0, torch.nan)


def _take(v: Tensor, index: Index) -> Tensor:
    """(..., rows, columns, D)."""
    if isinstance(index, slice):
        return v[..., index, None, :]
    return v.index_select(-2, index.flatten()).reshape(*v.shape[:-2], *index.shape, v.shape[-1])


def _give(v: Tensor, index: Tensor, parts: Tensor) -> None:
    """The transpose of `_take`, added to v."""
    v.index_add_(-2, index.flatten(), parts.flatten(-3, -2))


# y = (I - B)^-1 u has the adjoint du = (I - B)^-T dy, dbeta_ij = <du_i, y_j>. The transposed solve z = (I - B)^-T u has
# du = (I - B)^-1 dz, dbeta_ij = <z_i, du_j>: the same two, the other way round.
class _Resolve(torch.autograd.Function):
    @staticmethod
    def forward(u: Tensor, beta: Tensor, p: Plan, transposed: bool) -> Tensor:
        with _as_given(u):
            return _Substitution(beta, p, transposed).run(u)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Plan, bool], output: Tensor) -> None:
        _, beta, ctx.plan, ctx.transposed = inputs
        ctx.save_for_backward(beta, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        beta, y = ctx.saved_tensors
        grad_u = resolve(grad, beta, ctx.plan, not ctx.transposed)
        if not ctx.needs_input_grad[1]:
            return grad_u, None, None, None
        reader, source = (y, grad_u) if ctx.transposed else (grad_u, y)
        return grad_u, dots(reader, pad(source, (0, 0, ctx.plan.known, 0)), ctx.plan), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, u: Tensor, beta: Tensor, p: Plan, transposed: bool) -> tuple[Tensor, int]:
        u, beta = _in_front(info.batch_size, in_dims[:2], [u, beta])
        return resolve(u, beta, p, transposed), 0


def resolve(u: Tensor, beta: Tensor, p: Plan, transposed: bool = False) -> Tensor:
    result: Tensor = _Resolve.apply(u, beta, p, transposed)  # type: ignore[no-untyped-call]
    return result


class _Substitution:
    """Block by block. All that waits for no other block is done before: above all the inverses of diagonal blocks."""

    def __init__(self, beta: Tensor, p: Plan, transposed: bool) -> None:
        self.plan, self.blocks, self.transposed = p, p.blocks, transposed
        beta = pad(beta, (0, 1, 0, p.blocks.rows - p.new))
        self.far, self.pairs = beta.gather(-1, _like(beta, p.blocks.far)), p.blocks.pairs.to(beta.dtype)
        near = beta.gather(-1, _like(beta, p.blocks.near))
        near = near.reshape(*near.shape[:-2], len(p.blocks), p.blocks.size, p.blocks.size)
        reach = p.blocks.reach.to(beta.dtype)
        near, self.reach = (near.mT, reach.mT) if transposed else (near, reach)
        self.broken = ~near.isfinite().all(-1).flatten(-2)[..., None]  # rows that are NaN whatever they read
        eye = torch.eye(p.blocks.size, dtype=beta.dtype, device=beta.device)
        near = eye - near.nan_to_num(0, 0, 0)
        self.inverse = torch.linalg.solve_triangular(near, eye, upper=transposed, unitriangular=True)

    def run(self, u: Tensor) -> Tensor:
        """Each block reads those done before; transposed, from the end, each gives to those it reads."""
        u = pad(u, (0, 0, 0, self.blocks.rows - u.shape[-2])).masked_fill(self.broken, torch.nan)
        y = pad(u, (0, 0, 0, 1))
        order = range(len(self.blocks))
        for block in reversed(order) if self.transposed else order:
            rows = self.blocks[block]
            right = y[..., rows, :] if self.transposed else self.pull(block, y)
            y[..., rows, :] = _product(self.inverse[..., block, :, :], right, self.reach[block])
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
            return right + _product(self.far[..., rows, before], y[..., before, :], self.pairs[rows, before])
        read = _take(y, self.blocks.far_sources[rows, :width])
        return right + (self.far[..., rows, None, :width] @ read).squeeze(-2)

    def push(self, block: int, y: Tensor) -> None:
        """The transpose: what a block owes to those before it."""
        rows, width = self.blocks[block], self.blocks.widths[block]
        if width and self.plan.wide:
            before = slice(0, rows.start)
            y[..., before, :] += _product(self.far[..., rows, before].mT, y[..., rows, :], self.pairs[rows, before].mT)
        elif width:
            parts = self.far[..., rows, :width, None] * y[..., rows, None, :]
            _give(y, self.blocks.far_sources[rows, :width], parts)


def _like(t: Tensor, index: Tensor) -> Tensor:
    """An index for the last two dimensions, repeated over the leading ones of t."""
    return index.expand(*t.shape[:-2], *index.shape)


def _in_front(size: int, dims: tuple[int | None, ...], tensors: list[Tensor]) -> list[Tensor]:
    """The mapped dimension first, everywhere: all operations here take any number of leading dimensions."""
    return [
        t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0) for dim, t in zip(dims, tensors, strict=True)
    ]


def _as_given(t: Tensor) -> AbstractContextManager[Any]:
    """No autocast: the dtype was chosen at the entrance."""
    kind = t.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
