"""Attention and its feedback as operations on (heads, rows, columns), by blocks, with gradients of any order.

The direct part is torch's fused attention. The feedback y = (I - B)^-1 u goes by blocks of `BLOCK` rows: what a block
reads of earlier blocks comes from that same kernel, joined with the block's own scores by their log-sum-exps, and a
triangular solve of BLOCK × BLOCK finishes the block. The backward sweep does the same from the last block to the first.
Kept are inputs, outputs and log-sum-exps, worked on are the scores of a few blocks: never n².
Second derivatives alone, where they are asked for, write the n × n matrices out. (On other devices than a CPU those of
the direct part are torch's own affair.)

As in torch's attention, a NaN or infinity among the inputs may spoil rows shortly before its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from resolvent.ops.autograd import BatchedFunction

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

BLOCK = 256
TOGETHER = 2  # blocks whose own scores are computed at once: enough work per call, and still in the cache


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v, causal, the last key standing beside the last query."""
    if not scale > 0:  # torch's fused kernel masks before it scales, and gives NaN
        q, scale = q * scale, 1.0
    if _fused(q):
        return _run(_Attention(scale), q, k, v)
    known = k.shape[1] - q.shape[1]  # torch aligns the first query with the first key
    padded = pad(q, (0, 0, known, 0))[None]
    return scaled_dot_product_attention(padded, k[None], v[None], is_causal=True, scale=scale)[0, :, known:]


def feedback(o: Tensor, q: Tensor, k: Tensor, gate: Tensor, known: Tensor) -> Tensor:
    """The new rows of y = (1 - g) o + g softmax(q kᵀ) y, over strictly earlier rows, the first of which are `known`."""
    return _run(_Feedback(for_backward=torch.is_grad_enabled()), o, q, k, gate, known)


def _run(operation: _Operation, *inputs: Tensor) -> Tensor:
    return _Run.apply(operation, *inputs)[0]  # type: ignore[no-untyped-call, no-any-return]


class _Operation(Protocol):
    """One operation, three times: fast, its adjoint, and written out with n × n matrices."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The result, then whatever else the adjoint needs."""

    def adjoint(self, grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the inputs, from the inputs and all that `forward` gave."""

    def plain(self, *inputs: Tensor) -> Tensor:
        """The result alone, differentiable as often as one likes."""


@dataclass(frozen=True)
class _Attention:
    """softmax(scale · q kᵀ) v on a CPU, over keys of which the last stands beside the last query."""

    scale: float

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        q, k, v = inputs
        known = k.shape[1] - q.shape[1]
        out, lse = _attend(q, k[:, known:], v[:, known:], self.scale, causal=True)
        if known:
            _join(out, lse, *_attend(q, k[:, :known], v[:, :known], self.scale))
        return out, lse

    def adjoint(self, grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, lse = saved
        known = k.shape[1] - q.shape[1]
        dq, dk, dv = _attend_adjoint(grad, q, out, lse, k[:, known:], v[:, known:], self.scale, causal=True)
        if known:
            far_dq, far_dk, far_dv = _attend_adjoint(grad, q, out, lse, k[:, :known], v[:, :known], self.scale)
            dq, dk, dv = dq + far_dq, torch.cat([far_dk, dk], 1), torch.cat([far_dv, dv], 1)
        return dq, dk, dv

    def plain(self, *inputs: Tensor) -> Tensor:
        q, k, v = inputs
        return _softmax_before(q * self.scale, k, k.shape[1] - q.shape[1]) @ v


# The first token has nothing to feed back. It counts as reading itself, with a gate of 0: so no row is empty, no
# log-sum-exp infinite, and neither the solve (which skips the diagonal) nor the adjoint (0 times it) ever notices.
@dataclass(frozen=True)
class _Feedback:
    """Feedback y = (1 - g) o + g softmax(q kᵀ) y over strictly earlier rows, the first of which are `known`."""

    for_backward: bool  # only the adjoint needs all of m = softmax(q kᵀ) y

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        o, q, k, gate, known = inputs
        g, before = _effective(gate, known), known.shape[1]
        y = torch.cat([known, (1 - g) * o], 1)
        y_new, k_new = y[:, before:], k[:, before:]
        m, lse = torch.zeros_like(o), torch.full_like(gate, -torch.inf)  # of what each row has read so far
        if before:
            m, lse = _attend(q, k[:, :before], known)
        for together, count in _batches(o.shape[1]):
            weights, share, near_lse = _near(q[:, together], k_new[:, together], count, before + together.start == 0)
            for c, rows in enumerate(_split(together, count)):
                share[:, c] *= _join(m[:, rows], lse[:, rows], None, near_lse[:, c])
                y_new[:, rows].addcmul_(g[:, rows], m[:, rows])
                y_new[:, rows] = solve_unit_lower(weights[:, c] * (-g[:, rows] * share[:, c]), y_new[:, rows])
                sources, readers = _meeting(rows.stop, o.shape[1])
                if readers.start < readers.stop:
                    far = _attend(q[:, readers], k_new[:, sources], y_new[:, sources])
                    _join(m[:, readers], lse[:, readers], *far)
            if self.for_backward:
                near = weights @ _blocked(y_new[:, together], count)
                m[:, together] += near.mul_(share).flatten(1, 2)
        return y_new, m, lse

    def adjoint(self, grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        o, q, k, gate, known, y, m, lse = saved
        g, before = _effective(gate, known), known.shape[1]
        du, gdu = grad.clone(memory_format=torch.contiguous_format), torch.empty_like(o)
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        k_new, dk_new = k[:, before:], dk[:, before:]
        for together, count in reversed(list(_batches(o.shape[1]))):
            q_, k_, y_ = (_blocked(t[:, together], count) for t in (q, k_new, y))
            weights = (q_ @ k_.mT).sub_(_blocked(lse[:, together, None], count)).exp_().tril_(-1)
            for c, rows in reversed(list(enumerate(_split(together, count)))):
                sources, readers = _meeting(rows.stop, o.shape[1])
                if readers.start < readers.stop:
                    grad_, q_r, m_r, lse_r = (t[:, readers] for t in (gdu, q, m, lse))
                    more = _attend_adjoint(grad_, q_r, m_r, lse_r, k_new[:, sources], y[:, sources])
                    for total, term in zip((dq[:, readers], dk_new[:, sources], du[:, sources]), more, strict=True):
                        total += term
                du[:, rows] = solve_unit_lower(weights[:, c] * -g[:, rows], du[:, rows], transposed=True)
                torch.mul(du[:, rows], g[:, rows], out=gdu[:, rows])
            gdu_ = _blocked(gdu[:, together], count)
            inner = (gdu_ * _blocked(m[:, together], count)).sum(-1, keepdim=True)
            scores = (gdu_ @ y_.mT).sub_(inner).mul_(weights)
            dq[:, together] += (scores @ k_).flatten(1, 2)
            dk_new[:, together] += (scores.mT @ q_).flatten(1, 2)
        dgate = (du * (m - o)).sum(-1)
        dknown = torch.zeros_like(known)
        if before:
            more_dq, dk[:, :before], dknown = _attend_adjoint(gdu, q, m, lse, k[:, :before], known)
            dq += more_dq
        else:
            dgate[:, 0] = 0
        return (1 - g) * du, dq, dk, dgate, dknown

    def plain(self, *inputs: Tensor) -> Tensor:
        o, q, k, gate, known = inputs
        g, before = _effective(gate, known), known.shape[1]
        b = g * _softmax_before(q, k, before - 1)
        return solve_unit_lower(-b[..., before:], (1 - g) * o + b[..., :before] @ known)


class _Run(BatchedFunction):
    """An `_Operation` as torch sees it."""

    @staticmethod
    def forward(operation: _Operation, *inputs: Tensor) -> tuple[Tensor, ...]:
        return operation.forward(*(t.detach().contiguous() for t in inputs))

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operation, *tensors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.needs_input_grad) - 1
        return None, *_Adjoint.apply(ctx.operation, count, grad, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Adjoint(BatchedFunction):
    """The backward sweep as an operation of its own, whose derivative comes from the matrices written out."""

    @staticmethod
    def forward(operation: _Operation, count: int, grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return operation.adjoint(grad.detach().contiguous(), *(t.detach().contiguous() for t in saved))

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.operation, ctx.count, grad, *saved = inputs
        ctx.rest = len(saved) - ctx.count
        ctx.save_for_backward(grad, *saved[: ctx.count])

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def gradients(grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            return torch.func.vjp(ctx.operation.plain, *inputs)[1](grad)  # type: ignore[no-any-return]

        return None, None, *torch.func.vjp(gradients, *ctx.saved_tensors)[1](grads), *[None] * ctx.rest


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0, *, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Softmax attention and its log-sum-exps: on a CPU by the kernel beneath torch's attention, which gives both."""
    if _fused(q):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(q[None], k[None], v[None], 0.0, causal, scale=scale)
        return out[0], lse[0]
    pieces = []
    for rows in torch.split(q, BLOCK, 1):
        scores = rows @ k.mT * scale
        lse = scores.logsumexp(-1)
        pieces.append((scores.sub_(lse[..., None]).exp_() @ v, lse))
    out, lse = (torch.cat(tensors, 1) for tensors in zip(*pieces, strict=True))
    return out, lse


def _attend_adjoint(
    grad: Tensor, q: Tensor, out: Tensor, lse: Tensor, k: Tensor, v: Tensor, scale: float = 1.0, *, causal: bool = False
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v. With `out` and `lse` of full rows, k and v may be any part of what those rows read."""
    if _fused(q):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        given = (t[None] for t in (grad, q, k, v, out, lse))
        return tuple(t[0] for t in kernel(*given, 0.0, causal, scale=scale))
    dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
    for grad_, q_, out_, lse_ in zip(*(torch.split(t, BLOCK, 1) for t in (grad, q, out, lse)), strict=True):
        weights = (q_ @ k.mT * scale).sub_(lse_[..., None]).exp_()
        scores = (grad_ @ v.mT).sub_((grad_ * out_).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
        dq.append(scores @ k)
        dk += scores.mT @ q_
        dv += weights.mT @ grad_
    return torch.cat(dq, 1), dk, dv


def _join(out: Tensor, lse: Tensor, more: Tensor | None, more_lse: Tensor) -> Tensor:
    """Fold what rows read of further sources into what they read so far; returns the share of what is new.

    The two shares are divided by their own sum: a log-sum-exp of 10⁵ is known to a hundredth only, and rows must sum to
    one all the same.
    """
    top = torch.maximum(lse, more_lse)
    before, new = (lse - top).exp_(), (more_lse - top).exp_()
    total = before + new
    out.mul_((before / total)[..., None])
    share = new.div_(total)[..., None]
    if more is not None:
        out.addcmul_(more, share)
    torch.add(top, total.log_(), out=lse)
    return share


def _meeting(stop: int, n: int) -> tuple[slice, slice]:
    """Once the rows before `stop` are done: sources and readers to bring together, in squares as large as can be.

    After block c, the last 2^t blocks meet the next 2^t, where 2^t is the largest power of two that divides c + 1: so
    every block meets every earlier one exactly once, and just in time.
    """
    done = -(-stop // BLOCK)
    reach = BLOCK * (done & -done)
    return slice(stop - reach, stop), slice(stop, min(stop + reach, n))


def _fused(t: Tensor) -> bool:
    return t.device.type == "cpu"


def _near(q: Tensor, k: Tensor, count: int, opening: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Within each of `count` blocks: weights, strictly lower, what makes their rows sum to one, and log-sum-exps."""
    scores = _blocked(q, count) @ _blocked(k, count).mT
    future = scores.new_full(scores.shape[-2:], -torch.inf).triu_()
    peak = (scores + future).amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
    weights = scores.sub_(peak).exp_().tril_(-1)  # not exp(-inf): special values cost far more than this pass
    if opening:
        weights[:, 0, 0, 0], peak[:, 0, 0, 0] = 1, 0
    sums = weights.sum(-1)
    share = sums.masked_fill(sums == 0, 1).reciprocal_()[..., None]  # a block's first row reads nothing of it
    return weights, share, sums.log_().add_(peak[..., 0])


def _softmax_before(q: Tensor, k: Tensor, reach: int) -> Tensor:
    """All scores written out: row i sees the keys up to i + reach; a row that would see none sees the first."""
    before = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(reach)
    before[0, 0] = True
    return (q @ k.mT).masked_fill(~before, -torch.inf).softmax(-1)


def _effective(gate: Tensor, known: Tensor) -> Tensor:
    """The gate as a column, 0 where there is nothing to feed back."""
    rows = torch.arange(known.shape[1], known.shape[1] + gate.shape[1], device=gate.device)
    return (gate * (rows > 0))[..., None]


def solve_unit_lower(strict: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """(I + strict)^-1 right, or with its transpose. What stands on and above the diagonal is not read."""
    matrix = strict.mT if transposed else strict
    solution: Tensor = torch.linalg.solve_triangular(matrix, right, upper=transposed, unitriangular=True)
    return solution


def _batches(n: int) -> Iterator[tuple[slice, int]]:
    """Full blocks, `TOGETHER` at a time, and then the rest: rows, and how many blocks they are."""
    full = n - n % BLOCK
    for start in range(0, full, TOGETHER * BLOCK):
        stop = min(start + TOGETHER * BLOCK, full)
        yield slice(start, stop), (stop - start) // BLOCK
    if full < n:
        yield slice(full, n), 1


def _blocked(t: Tensor, count: int) -> Tensor:
    """(heads, blocks, rows, columns)."""
    return t.view(t.shape[0], count, -1, t.shape[2])


def _split(together: slice, count: int) -> list[slice]:
    size = (together.stop - together.start) // count
    return [slice(together.start + c * size, together.start + (c + 1) * size) for c in range(count)]
