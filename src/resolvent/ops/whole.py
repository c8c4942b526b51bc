"""Softmax over the whole of T: direct scores compete with all that feedback brings, instead of sharing by a gate.

With scores p for A and r = log_softmax(qb·kb) + log g for B, T~ = (I - exp R)^-1 exp P has row sums exp(l):

    l_i = log(Σ_j exp(p_ij) + Σ_j exp(r_ij + l_j))

They overflow long before anything else does, but dividing row i by exp(l_i) gives another recurrence on the pattern,
w_ij = exp(p_ij - l_i) and v_ij = exp(r_ij + l_j - l_i), whose rows sum to one, and whose T is T~, its rows normalised.
Only the logarithms run through the sequence first; they grow with it and are kept in float64. (exp R sums to g ≤ 1 in
each row: with free scores for feedback, walks would multiply and put all weight on the first tokens.)

The coefficients, n × W, are written out here, unlike those of the gated softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops import portable
from resolvent.ops.cpu_whole import logs_forward
from resolvent.ops.heads import repeated
from resolvent.ops.portable_plan import Plan, plan
from resolvent.ops.rows import Rows
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers


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
    token = tuple(t[:, :, 0] for t in token)
    working = torch.float64 if token[0].dtype == torch.float64 else torch.float32
    heads = token[5].shape[1]
    x, qa, ka, qb, _, gate = (repeated(t.to(working), heads) for t in token)
    slots = torch.tensor(reads, device=x.device)
    kept = {name: repeated(part.index_select(2, slots), heads) for name, part in parts.items()}
    scores, values = (qa * ka).sum(-1, keepdim=True), x[:, :, None]
    if pattern.direct == "all":
        scores = torch.cat([scores, (qa[:, :, None] * kept["keys_a"].to(working)).sum(-1)], -1)
        values = torch.cat([values, kept["values"].to(working)], 2)
    terms = (scores * scale).double()
    if len(reads):
        keys = kept.get("keys_b")  # over one source the softmax is 1, whatever the score
        weights = torch.zeros_like(kept["logs"][..., 0])
        if keys is not None:
            weights = ((qb[:, :, None] * keys.to(working)).sum(-1).double() * scale).log_softmax(-1)
        terms = torch.cat([terms, _log(gate)[..., None] + weights + kept["logs"][..., 0]], -1)
        values = torch.cat([values, kept["outputs"].to(working)], 2)
    y = (terms.softmax(-1).to(working)[..., None] * values).sum(2).to(token[0].dtype)
    if write >= 0:
        logs = terms.logsumexp(-1)[..., None]
        rows = {"values": token[0], "keys_a": token[2], "outputs": y, "keys_b": token[4], "logs": logs}
        for name, part in parts.items():
            part[:, :, write] = rows[name]
    return y[:, :, None]


def coefficients(
    qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, where: Rows, scale: float, known: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, beta as `solve` wants them, and l of the new rows. `known`: (B, H, known) logarithms from before."""
    p = plan(where, qa.device)
    direct = (qa * ka[..., where.known :, :]).sum(-1, keepdim=True)
    if where.pattern.direct == "all":
        direct = torch.cat([direct, portable.dots(qa, ka, p)], -1)
    direct = torch.where(p.direct[:, : direct.shape[-1]], direct.double() * scale, -torch.inf)
    feedback = torch.zeros_like(gate, dtype=torch.float64)[..., None][..., : p.width]  # if there is only one source
    if p.width > 1:
        feedback = portable.dots(qb, kb, p).double() * scale
    feedback = feedback.masked_fill(~p.valid & p.feeds[:, None], -torch.inf).log_softmax(-1) + _log(gate)[..., None]
    feedback = torch.where(p.valid, feedback, -torch.inf)
    before = known.double()
    logs: Tensor = _Logs.apply(direct, feedback, before, p)  # type: ignore[no-untyped-call]
    alpha, beta = _weights(direct, feedback, logs, before, p)
    return alpha.to(qa.dtype), beta.to(qa.dtype), logs


def _log(gate: Tensor) -> Tensor:
    """A gate of zero closes for good: -inf, with no gradient, since that of the logarithm would be NaN."""
    open_ = gate > 0
    return torch.where(open_, torch.where(open_, gate, 1).double().log(), -torch.inf)


def _weights(direct: Tensor, feedback: Tensor, logs: Tensor, known: Tensor, p: Plan) -> tuple[Tensor, Tensor]:
    before = pad(torch.cat([known, logs], -1), (0, 1))
    return (direct - logs[..., None]).exp(), (feedback + before[..., p.sources] - logs[..., None]).exp()


# dl_i = Σ w_ij dp_ij + Σ v_ij (dr_ij + dl_j): another recurrence with the weights v, so a gradient of l passes on
# through (I - V)^-T, like any gradient of the outputs.
class _Logs(torch.autograd.Function):
    @staticmethod
    def forward(direct: Tensor, feedback: Tensor, known: Tensor, p: Plan) -> Tensor:
        on_cpu = direct.device.type == "cpu"
        return (_on_cpu if on_cpu else _row_by_row)(direct, feedback, known, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        direct, feedback, known, logs = ctx.saved_tensors
        p = ctx.plan
        w, v = _weights(direct, feedback, logs, known, p)
        slope = portable.resolve(grad[..., None], v, p, transposed=True) if p.new > 1 else grad[..., None]
        return slope * w, slope * v, portable.spread(v, slope, p)[..., : p.known, 0], None


def _on_cpu(direct: Tensor, feedback: Tensor, known: Tensor, p: Plan) -> Tensor:
    heads = direct.shape[0] * direct.shape[1]
    logs = direct.new_empty((heads, p.known + p.new))
    logs[:, : p.known] = known.reshape(heads, p.known)
    arrays = [t.detach().reshape(heads, p.new, t.shape[-1]).numpy() for t in (direct, feedback)]
    logs_forward(arrays[0], arrays[1], p.where.table, logs.numpy())
    return logs[:, p.known :].reshape(direct.shape[:-1])


def _row_by_row(direct: Tensor, feedback: Tensor, known: Tensor, p: Plan) -> Tensor:
    logs = pad(known, (0, p.new + 1))
    for i in range(p.new):
        terms = [direct[..., i, :], feedback[..., i, :] + logs[..., p.sources[i]]]
        logs[..., p.known + i] = torch.cat(terms, -1).logsumexp(-1)
    return logs[..., p.known : p.known + p.new]
