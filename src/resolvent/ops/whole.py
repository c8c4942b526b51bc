"""Softmax over the whole of T: direct scores compete with all that feedback brings, instead of sharing by a gate.

With P the scores of A and U = g B~ the weights of feedback, T~ = (I - U)^-1 exp(P) has row sums exp(l):

    l_i = log(Σ_j exp(p_ij) + Σ_j u_ij exp(l_j))

They overflow long before anything else does, but dividing row i by exp(l_i) gives another recurrence on the pattern,
w_ij = exp(p_ij - l_i) and v_ij = u_ij exp(l_j - l_i), whose rows sum to one, and whose T is T~, its rows normalised.
Only the logarithms run through the sequence first; they grow with it and are kept in float64. (U sums to g ≤ 1 in each
row: with free scores for feedback, walks would multiply and put all weight on the first tokens.)

The coefficients, n × W, are written out here, unlike those of the gated softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops import portable
from resolvent.ops.cpu_whole import logs_forward
from resolvent.ops.portable_plan import Plan, plan
from resolvent.ops.rows import Rows
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers

_MOST = 80.0  # exponents of weights are cut here: beyond, u must be so small that v is nothing in float32


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    where: Rows, scale: float, backend: Any, y_known: Tensor | None = None, known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs by `backend.solve`, and the logarithms of the new rows; `known`: those of the rows known from before."""
    working = torch.float64 if x.dtype == torch.float64 else torch.float32
    qa, ka, qb, kb, gate = (t.to(working) for t in (qa, ka, qb, kb, gate))
    before = gate.new_zeros((*gate.shape[:2], where.known)) if known is None else known
    alpha, beta, logs = coefficients(qa, ka, qb, kb, gate, where, scale, before)
    y: Tensor = backend.solve(x.to(working), alpha, beta, where, None if y_known is None else y_known.to(working))
    return y.to(x.dtype), logs


def step(
    token: tuple[Tensor, ...], parts: dict[str, Tensor], pattern: Pattern, reads: Integers, write: int, scale: float
) -> Tensor:
    """One token out of a cache; as `portable.step`."""
    working = torch.float64 if token[0].dtype == torch.float64 else torch.float32
    x, qa, ka, qb, _, gate = (t.to(working) for t in token)
    slots = torch.tensor(reads, device=x.device)
    kept = {name: part.index_select(2, slots) for name, part in parts.items()}
    scores, values = (qa * ka).sum(-1, keepdim=True), x[:, :, None]
    if pattern.direct == "all":
        scores = torch.cat([scores, (qa[:, :, None] * kept["keys_a"].to(working)).sum(-1)], -1)
        values = torch.cat([values, kept["values"].to(working)], 2)
    terms = (scores * scale).double()
    if len(reads):
        keys = kept.get("keys_b")  # a softmax over one source is 1, whatever the score
        weights = torch.ones_like(kept["logs"][..., 0])
        if keys is not None:
            weights = ((qb[:, :, None] * keys.to(working)).sum(-1) * scale).softmax(-1).double()
        terms = torch.cat([terms, (gate[..., None].double() * weights).log() + kept["logs"][..., 0]], -1)
        values = torch.cat([values, kept["outputs"].to(working)], 2)
    y = (terms.softmax(-1).to(working)[..., None] * values).sum(2).to(token[0].dtype)
    if write >= 0:
        logs = terms.logsumexp(-1)[..., None]
        rows = {"values": token[0], "keys_a": token[2], "outputs": y, "keys_b": token[4], "logs": logs}
        for name, part in parts.items():
            part[:, :, write] = rows[name]
    return y


def coefficients(
    qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, where: Rows, scale: float, known: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, beta as `solve` wants them, and l of the new rows. `known`: (B, H, known) logarithms from before."""
    p = plan(where, qa.device)
    scores = (qa * ka[..., where.known :, :]).sum(-1, keepdim=True)
    if where.pattern.direct == "all":
        scores = torch.cat([scores, portable.dots(qa, ka, p)], -1)
    scores = (scores * scale).double()
    valid = p.direct[:, : scores.shape[-1]]
    u = (gate[..., None] * portable.softmax(portable.dots(qb, kb, p) * scale, p.valid)).double()
    logs: Tensor = _Logs.apply(scores, u, known.double(), p)  # type: ignore[no-untyped-call]
    w, rise = _weights(scores, logs, known.double(), p, valid)
    return w.to(qa.dtype), (u * rise).to(qa.dtype), logs


def _weights(scores: Tensor, logs: Tensor, known: Tensor, p: Plan, valid: Tensor) -> tuple[Tensor, Tensor]:
    """w, and exp(l_j - l_i) for every edge; zero beyond a row's sources."""
    w = torch.where(valid, scores - logs[..., None], -torch.inf).exp()
    before = pad(torch.cat([known, logs], -1), (0, 1))
    rise = (before[..., p.sources] - logs[..., None]).clamp(max=_MOST)
    return w, torch.where(p.valid, rise, -torch.inf).exp()


# dl_i = Σ w_ij dp_ij + Σ v_ij dl_j + Σ exp(l_j - l_i) du_ij: another recurrence with the weights v, so a gradient of l
# passes on through (I - V)^-T, like any gradient of the outputs.
class _Logs(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, u: Tensor, known: Tensor, p: Plan) -> Tensor:
        if scores.device.type == "cpu":
            return _on_cpu(scores, u, known, p)
        return _row_by_row(scores, u, known, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, u, known, logs = ctx.saved_tensors
        p = ctx.plan
        w, rise = _weights(scores, logs, known, p, p.direct[:, : scores.shape[-1]])
        v = u * rise
        slope = portable.resolve(grad[..., None], v, p, transposed=True) if p.new > 1 else grad[..., None]
        back = portable.spread(v, slope, p)[..., : p.known, 0]
        return slope * w, slope * rise, back, None


def _on_cpu(scores: Tensor, u: Tensor, known: Tensor, p: Plan) -> Tensor:
    heads = scores.shape[0] * scores.shape[1]
    logs = scores.new_empty((heads, p.known + p.new))
    logs[:, : p.known] = known.reshape(heads, -1)
    arrays = [t.detach().reshape(heads, p.new, -1).numpy() for t in (scores, u)]
    logs_forward(arrays[0], arrays[1], p.where.table, logs.numpy())
    return logs[:, p.known :].reshape(scores.shape[:-1])


def _row_by_row(scores: Tensor, u: Tensor, known: Tensor, p: Plan) -> Tensor:
    logs = pad(known, (0, p.new + 1))
    for i, row in enumerate(p.where.table.tolist()):
        sources = [j for j in row if j >= 0]
        direct = scores[..., i, : 1 + len(sources)]
        fed = u[..., i, : len(sources)].log() + logs[..., sources]
        logs[..., p.known + i] = torch.cat([direct, fed], -1).logsumexp(-1)
    return logs[..., p.known : p.known + p.new]
