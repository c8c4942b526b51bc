"""One softmax over all of T: direct scores compete with all that feedback brings, instead of sharing by a gate.

With scores p for A and r = log_softmax(qb·kb) + log g for B, T~ = (I - exp R)^-1 exp P has row sums exp(l):

    l_i = log(Σ_j exp(p_ij) + Σ_j exp(r_ij + l_j))

They overflow long before anything else does, but dividing row i by exp(l_i) gives another recurrence on the pattern,
w_ij = exp(p_ij - l_i) and v_ij = exp(r_ij + l_j - l_i), whose rows sum to one, and whose T is T~, its rows normalized.
Only the logarithms run through the sequence first; they grow with it and are kept in float64. (exp R sums to g ≤ 1 in
each row: with free scores for feedback, walks would multiply and put all weight on the first tokens.)

The coefficients, n × W, are written out here, unlike those of the gated softmax.

On a pair of patterns A's part comes first: u_i = Σ_j softmax(p)_ij x_j and its mass s_i = log Σ_j exp(p_ij). B's stage
then has one direct score in each row, s_i, for the one input u_i: l_i = log(exp(s_i) + Σ_j exp(r_ij + l_j)), as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.kernels import Kernel
from resolvent.ops.autograd import BatchedFunction
from resolvent.ops.backend import Backend, Token
from resolvent.ops.inputs import Inputs, repeat_heads
from resolvent.ops.portable.edges import dots, spread
from resolvent.ops.portable.plan import EdgePlan, edge_plan
from resolvent.ops.portable.resolve import resolve
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

_logs_forward = Kernel("joint.logs_forward")


def mix(
    inputs: Inputs,
    rows: Rows,
    scale: float,
    backend: Backend,
    y_known: Tensor | None = None,
    logs_known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs by `backend.solve`, and the logarithms of the new rows; `logs_known` are those of the known ones."""
    x, dtype = inputs.x, compute_dtype(inputs.x)
    alpha, beta, logs = coefficients(inputs, rows, scale, logs_known)
    y = backend.solve(x.to(dtype), alpha, beta, rows, None if y_known is None else y_known.to(dtype))
    return y.to(x.dtype), logs


def step(token: Token, scale: float) -> Tensor:
    """One token out of a cache; as `Backend.step`, with "logs" (B, H, slots, 1) in the cache."""
    if token.ragged:
        return torch.cat([step(one, scale) for one in token.by_sequence()])
    inputs = Inputs(*(t[:, :, 0] for t in token.inputs))
    dtype, heads = compute_dtype(inputs.x), inputs.heads
    qb, gate = (repeat_heads(t.to(dtype), heads) for t in (inputs.qb, inputs.gate))
    kept = _kept(token)
    terms, values = _direct_terms(inputs, kept, scale, direct=token.direct)
    if len(token.reads):
        keys = kept.get("keys_b")  # over one source the softmax is 1, whatever the score
        weights = torch.zeros_like(kept["logs"][..., 0])
        if keys is not None:
            weights = ((qb[:, :, None] * keys.to(dtype)).sum(-1).double() * scale).log_softmax(-1)
        terms = torch.cat([terms, _log(gate)[..., None] + weights + kept["logs"][..., 0]], -1)
        values = torch.cat([values, kept["outputs"].to(dtype)], 2)
    y = (terms.softmax(-1).to(dtype)[..., None] * values).sum(2).to(inputs.x.dtype)
    logs = terms.logsumexp(-1)[..., None]
    _keep(token, {"values": inputs.x, "keys_a": inputs.ka, "outputs": y, "keys_b": inputs.kb, "logs": logs})
    return y[:, :, None]


@dataclass(frozen=True)
class DirectPart:
    """A's stage of a pair, run as a backend is: u, and in one channel more its mass s, both as they are computed."""

    backend: Backend

    def mix(self, inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:  # noqa: ARG002
        dtype, scores = compute_dtype(inputs.x), direct_scores(inputs, rows, scale)
        u = self.backend.solve(inputs.x.to(dtype), scores.softmax(-1).to(dtype), None, rows)
        return torch.cat([u, scores.logsumexp(-1, keepdim=True).to(dtype)], -1)

    def like_outputs(self, u: Tensor) -> Tensor:
        """Without a mass, in their shape and dtype."""
        return torch.nn.functional.pad(u.to(compute_dtype(u)), (0, 1))

    def step(self, token: Token, scale: float) -> Tensor:
        if token.ragged:
            return torch.cat([self.step(one, scale) for one in token.by_sequence()])
        inputs = Inputs(*(t[:, :, 0] for t in token.inputs))
        dtype = compute_dtype(inputs.x)
        terms, values = _direct_terms(inputs, _kept(token), scale, direct=True)
        u = (terms.softmax(-1).to(dtype)[..., None] * values).sum(2)
        _keep(token, {"values": inputs.x, "keys_a": inputs.ka})
        return torch.cat([u, terms.logsumexp(-1, keepdim=True).to(dtype)], -1)[:, :, None]


def scaled(inputs: Inputs, scale: float) -> Inputs:
    """Queries multiplied by what would multiply their scores."""
    dtype = compute_dtype(inputs.x)
    return inputs._replace(qa=inputs.qa.to(dtype) * scale, qb=inputs.qb.to(dtype) * scale)


def after_direct(inputs: Inputs, mixed: Tensor) -> Inputs:
    """What B's stage of a pair takes, after `DirectPart`."""
    return with_direct_mass(inputs, mixed[..., :-1].to(inputs.x.dtype), mixed[..., -1:])


def with_direct_mass(inputs: Inputs, x: Tensor, mass: Tensor) -> Inputs:
    """Inputs whose direct score is this mass: as a query, whose key is 1."""
    return inputs._replace(x=x, qa=mass, ka=torch.ones_like(mass))


def _kept(token: Token) -> dict[str, Tensor]:
    """The slots that a token reads, for each head."""
    slots = torch.tensor(token.reads, device=token.inputs.x.device)
    return {name: repeat_heads(t.index_select(2, slots), token.inputs.heads) for name, t in token.cache.items()}


def _keep(token: Token, new: dict[str, Tensor]) -> None:
    (write,) = token.writes
    if write >= 0:
        for name, tensor in token.cache.items():
            tensor[:, :, write] = new[name]


def _direct_terms(inputs: Inputs, kept: dict[str, Tensor], scale: float, *, direct: bool) -> tuple[Tensor, Tensor]:
    """The direct scores of one token, and what they weigh."""
    dtype, heads = compute_dtype(inputs.x), inputs.heads
    x, qa, ka = (repeat_heads(t.to(dtype), heads) for t in inputs[:3])
    scores, values = (qa * ka).sum(-1, keepdim=True), x[:, :, None]
    if direct:
        scores = torch.cat([scores, (qa[:, :, None] * kept["keys_a"].to(dtype)).sum(-1)], -1)
        values = torch.cat([values, kept["values"].to(dtype)], 2)
    return (scores * scale).double(), values


def direct_scores(inputs: Inputs, rows: Rows, scale: float) -> Tensor:
    """The scores p on A's reads, in float64: (…, new, 1 + W), or one column if A is diagonal; -inf beyond a row's."""
    dtype, p = compute_dtype(inputs.x), edge_plan(rows, inputs.x.device)
    qa, ka = inputs.qa.to(dtype), inputs.ka.to(dtype)
    direct = (qa * ka[..., rows.known :, :]).sum(-1, keepdim=True)
    if rows.pattern.direct == "all":
        direct = torch.cat([direct, dots(qa, ka, p)], -1)
    return torch.where(p.direct[:, : direct.shape[-1]], direct.double() * scale, -torch.inf)


def coefficients(
    inputs: Inputs, rows: Rows, scale: float, logs_known: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, beta as `solve` wants them, and l of the new rows. `logs_known`: (B, H, known) logarithms from before."""
    dtype, p = compute_dtype(inputs.x), edge_plan(rows, inputs.x.device)
    qb, kb, gate = (t.to(dtype) for t in inputs[3:])
    direct = direct_scores(inputs, rows, scale)
    feedback = torch.zeros_like(gate, dtype=torch.float64)[..., None][..., : p.width]  # if there is only one source
    if p.width > 1:
        feedback = dots(qb, kb, p).double() * scale
    feedback = feedback.masked_fill(~p.valid & p.feeds[:, None], -torch.inf).log_softmax(-1) + _log(gate)[..., None]
    feedback = torch.where(p.valid, feedback, -torch.inf)
    before = gate.new_zeros((*gate.shape[:2], rows.known)) if logs_known is None else logs_known
    before = before.double()
    logs: Tensor = _Logs.apply(direct, feedback, before, p)  # type: ignore[no-untyped-call]
    alpha, beta = _weights(direct, feedback, logs, before, p)
    return alpha.to(dtype), beta.to(dtype), logs


def _log(gate: Tensor) -> Tensor:
    """A gate of zero closes for good: -inf, with no gradient, since that of the logarithm would be NaN."""
    open_ = gate > 0
    return torch.where(open_, torch.where(open_, gate, 1).double().log(), -torch.inf)


def _weights(direct: Tensor, feedback: Tensor, logs: Tensor, known: Tensor, p: EdgePlan) -> tuple[Tensor, Tensor]:
    before = pad(torch.cat([known, logs], -1), (0, 1))
    return (direct - logs[..., None]).exp(), (feedback + before[..., p.sources] - logs[..., None]).exp()


# dl_i = Σ w_ij dp_ij + Σ v_ij (dr_ij + dl_j): another recurrence with the weights v, so a gradient of l passes on
# through (I - V)^-T, like any gradient of the outputs.
class _Logs(BatchedFunction):
    @staticmethod
    def forward(direct: Tensor, feedback: Tensor, known: Tensor, p: EdgePlan) -> Tensor:
        on_cpu = direct.device.type == "cpu"
        return (_on_cpu if on_cpu else _row_by_row)(direct, feedback, known, p)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        direct, feedback, known, logs = ctx.saved_tensors
        p = ctx.plan
        w, v = _weights(direct, feedback, logs, known, p)
        slope = resolve(grad[..., None], v, p, transposed=True) if p.new > 1 else grad[..., None]
        return slope * w, slope * v, spread(v, slope, p)[..., : p.known, 0], None


def _on_cpu(direct: Tensor, feedback: Tensor, known: Tensor, p: EdgePlan) -> Tensor:
    heads = direct.shape[0] * direct.shape[1]
    logs = direct.new_empty((heads, p.known + p.new))
    logs[:, : p.known] = known.reshape(heads, p.known)
    shaped = (t.detach().reshape(heads, p.new, t.shape[-1]) for t in (direct, feedback))
    arrays = [t.contiguous().resolve_neg().numpy() for t in shaped]
    _logs_forward(*arrays, np.ascontiguousarray(p.rows.table), logs.numpy())
    return logs[:, p.known :].reshape(direct.shape[:-1])


def _row_by_row(direct: Tensor, feedback: Tensor, known: Tensor, p: EdgePlan) -> Tensor:
    logs = pad(known, (0, p.new + 1))
    for i in range(p.new):
        terms = [direct[..., i, :], feedback[..., i, :] + logs[..., p.sources[i]]]
        logs[..., p.known + i] = torch.cat(terms, -1).logsumexp(-1)
    return logs[..., p.known : p.known + p.new]
