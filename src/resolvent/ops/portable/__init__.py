"""The backend for any device: plain torch operations, and no n × n matrix for a sparse pattern.

Two operations carry everything, and the gradient of each is made of the same two, so that derivatives of any order
exist: a form over the pattern's edges (`edges.py`), and the recurrence itself (`resolve.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.backend import Request, Token
from resolvent.ops.inputs import Inputs, repeat_heads
from resolvent.ops.portable.edges import blend
from resolvent.ops.portable.plan import EdgePlan, edge_plan
from resolvent.ops.portable.resolve import resolve
from resolvent.ops.portable.scoring import PRODUCTS, Scoring
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows

NAME = "torch"


def refusal(request: Request) -> str | None:  # noqa: ARG001
    return None


def preference(request: Request) -> str | None:
    return f"plain torch operations run on {request.device}, at the pattern's own cost"


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    alpha, beta = coefficients(inputs, rows, scale)
    x, plan = inputs.x.to(compute_dtype(inputs.x)), edge_plan(rows, inputs.x.device)
    return _solve(x, alpha, beta, plan, y_known).to(inputs.x.dtype)


def coefficients(inputs: Inputs, rows: Rows, scale: float, scoring: Scoring = PRODUCTS) -> tuple[Tensor, Tensor | None]:
    """Alpha and beta of the gated softmax, laid out as for `solve`, zero beyond a row's sources."""
    dtype, plan = compute_dtype(inputs.x), edge_plan(rows, inputs.x.device)
    _, qa, ka, qb, kb, gate = (t.to(dtype) for t in inputs)
    alpha = torch.ones_like(gate)[..., None]  # a softmax over one entry, whatever its score
    if rows.pattern.direct == "all":
        own = scoring.of_pairs(qa, ka[..., rows.known :, :])[..., None]
        alpha = _softmax(torch.cat([own, scoring.of_edges(qa, ka, plan)], dim=-1) * scale, plan.direct)
    if not rows.pattern.recurrent:
        return alpha, None
    g = torch.where(plan.feeds, gate, 0)[..., None]  # with nothing to feed back, all weight stays with A
    if plan.width <= 1:
        return (1 - g) * alpha, g * plan.valid
    return (1 - g) * alpha, g * _softmax(scoring.of_edges(qb, kb, plan) * scale, plan.valid)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.solve`. What lies beyond a row's sources is replaced before anything is multiplied by it."""
    dtype, plan = compute_dtype(x), edge_plan(rows, x.device)
    if rows.pattern.direct == "all":
        alpha = torch.where(plan.direct, alpha, 0)
    if beta is not None:
        beta = torch.where(plan.valid, beta, 0).to(dtype)
    return _solve(x.to(dtype), alpha.to(dtype), beta, plan, y_known).to(x.dtype)


def step(token: Token, scale: float, scoring: Scoring = PRODUCTS) -> Tensor:
    """See `Backend.step`."""
    inputs = Inputs(*(t[:, :, 0] for t in token.inputs))
    dtype, heads = compute_dtype(inputs.x), inputs.heads
    x, qa, ka, qb, _, gate = (repeat_heads(t.to(dtype), heads) for t in inputs)
    slots, valid = _padded_reads(token)
    kept = {name: repeat_heads(_slots_of(t, slots).to(dtype), heads) for name, t in token.cache.items()}
    if token.ragged:  # what lies in slots that a sequence does not read may be anything
        kept = {name: torch.where(valid[:, None, :, None], t, 0) for name, t in kept.items()}
    valid = valid[:, None]  # (B or 1, 1, reads)
    feeds = valid.any(-1) & token.recurrent
    g = torch.where(feeds, gate, 0)[..., None]
    y = (1 - g) * x
    if token.direct:
        past = scoring.of_pairs(qa[:, :, None], kept["keys_a"]) * scale
        past = past.masked_fill(~valid, -torch.inf)  # after scaling: a scale may be zero or negative
        scores = torch.cat([scoring.of_pairs(qa, ka)[..., None] * scale, past], dim=-1)
        values = torch.cat([x[:, :, None], kept["values"]], dim=2)
        y = (1 - g) * (scores.softmax(-1)[..., None] * values).sum(2)
    if token.recurrent and slots.shape[1]:
        weights = valid.to(dtype)  # one read at most
        if "keys_b" in kept:
            weights = _softmax(scoring.of_pairs(qb[:, :, None], kept["keys_b"]) * scale, valid)
        y = y + g * (weights[..., None] * kept["outputs"]).sum(2)
    y = y.to(inputs.x.dtype)
    _write(token, {"values": inputs.x, "keys_a": inputs.ka, "outputs": y, "keys_b": inputs.kb})
    return y[:, :, None]


def _padded_reads(token: Token) -> tuple[Tensor, Tensor]:
    """The slots that each sequence reads, (B, most), and which of them are not padding; one row if all read alike."""
    device = token.inputs.x.device
    rows = [torch.from_numpy(own) for own in np.split(token.reads, token.begins[1:-1])]
    slots = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
    return slots.clamp(min=0), slots >= 0


def _slots_of(t: Tensor, slots: Tensor) -> Tensor:
    """(B, G, slots, D) → (B, G, reads, D)."""
    if len(slots) == 1:
        return t.index_select(2, slots[0])
    return t.gather(2, slots[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))


def _write(token: Token, new: dict[str, Tensor]) -> None:
    batch = np.arange(len(token.inputs.x))
    writes = np.broadcast_to(token.writes, batch.shape)
    rows, into = (torch.tensor(index[writes >= 0]) for index in (batch, writes))
    for name, t in token.cache.items():
        t[rows, :, into] = new[name][rows]


def _solve(x: Tensor, alpha: Tensor, beta: Tensor | None, plan: EdgePlan, y_known: Tensor | None) -> Tensor:
    """U = A x, what is known of y moved to the right-hand side, and the recurrence over the rest."""
    u = alpha[..., :1] * x[..., plan.known :, :]
    if plan.rows.pattern.direct == "all" and plan.width:
        u = u + blend(alpha[..., 1:], x, plan)
    if beta is None or not beta.numel():
        return u
    if y_known is not None and plan.known:
        u = u + blend(beta, pad(y_known.to(u.dtype), (0, 0, 0, plan.new)), plan)
    return resolve(u, beta, plan) if plan.new > 1 else u  # a single new row waits for no other


def _softmax(scores: Tensor, valid: Tensor) -> Tensor:
    """Over the valid entries of each row, zero elsewhere; a row without any has no NaN to pass back."""
    weights = scores.masked_fill(~valid & valid.any(-1, keepdim=True), -torch.inf).softmax(-1)
    return torch.where(valid, weights, 0)
