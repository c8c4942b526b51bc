"""The definition, row by row: y = (I - B)^-1 A x. Readable, never optimised, and the judge of every other backend.

Coefficients live on a pattern. With W the widest row and `pattern.table(n)` its sources, nearest first:

    alpha  (..., N, 1 + W)   column 0 weighs x_i itself, column 1 + c the c-th nearest source's x
           (..., N, 1)       where A is diagonal only
    beta   (..., N, W)       column c weighs the c-th nearest source's y; None where the pattern has no feedback

Columns beyond a row's own sources are never read. In translation-invariant patterns column c is the stride f(c).
Where a function takes a pattern it also takes `Rows`: packed sequences, or rows known from before.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from resolvent.ops.backend import Request, Token
from resolvent.ops.inputs import Inputs, repeat_heads
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.patterns import Stage

NAME = "reference"


def refusal(request: Request) -> str | None:  # noqa: ARG001
    return None


def preference(request: Request) -> str | None:  # noqa: ARG001
    return None  # slow on purpose


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Stage | Rows, y_known: Tensor | None = None) -> Tensor:
    """y_i = sum_j alpha_ij x_j + sum_{j<i} beta_ij y_j.  x: (..., N, D), with known rows first if there are any."""
    pattern = rows.pattern if isinstance(rows, Rows) else rows
    known, dtype = rows.known if isinstance(rows, Rows) else 0, x.dtype
    x, alpha = x.to(compute_dtype(x)), alpha.to(compute_dtype(x))
    before = x[..., :known, :] if y_known is None else y_known.to(x.dtype)  # of which none is read if None
    y = list(before.unbind(-2))
    for i, sources in _numbered(rows, x.shape[-2]):
        y_i = alpha[..., i, 0, None] * x[..., known + i, :]
        for c, j in enumerate(sources):
            if pattern.direct == "all":
                y_i = y_i + alpha[..., i, 1 + c, None] * x[..., j, :]
            if beta is not None:
                y_i = y_i + beta[..., i, c, None] * y[j]
        y.append(y_i)
    return torch.stack(y[known:], dim=-2).to(dtype)


# The adjoint. Let U = A x, so that (I - B) y = U and a loss with gradient dY = dL/dy has
#     dU = (I - B)^-T dY:   dU_j = dY_j + sum_{i reads j} beta_ij dU_i      the same recurrence, read from the end
# From dL = <dU, d(A x) + dB y> (differentiate (I - B) y = A x) follow
#     dalpha_ij = <dU_i, x_j>,    dbeta_ij = <dU_i, y_j>,    dX = A^T dU.
def solve_adjoint(
    grad_y: Tensor, x: Tensor, y: Tensor, alpha: Tensor, beta: Tensor | None, pattern: Stage
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of `solve` with respect to x, alpha and beta, in one reverse sweep."""
    grad_u = grad_y.clone()
    grad_x, grad_alpha = torch.zeros_like(x), torch.zeros_like(alpha)
    grad_beta = None if beta is None else torch.zeros_like(beta)
    for i, sources in reversed(list(_numbered(pattern, x.shape[-2]))):
        grad_u_i = grad_u[..., i, :]  # complete: every reader of i came before
        grad_alpha[..., i, 0] = (grad_u_i * x[..., i, :]).sum(-1)
        grad_x[..., i, :] += alpha[..., i, 0, None] * grad_u_i
        for c, j in enumerate(sources):
            if pattern.direct == "all":
                grad_alpha[..., i, 1 + c] = (grad_u_i * x[..., j, :]).sum(-1)
                grad_x[..., j, :] += alpha[..., i, 1 + c, None] * grad_u_i
            if beta is not None and grad_beta is not None:
                grad_beta[..., i, c] = (grad_u_i * y[..., j, :]).sum(-1)
                grad_u[..., j, :] += beta[..., i, c, None] * grad_u_i
    return grad_x, grad_alpha, grad_beta


def matrices(alpha: Tensor, beta: Tensor | None, pattern: Stage) -> tuple[Tensor, Tensor]:
    """A and B written out as (..., N, N)."""
    n = alpha.shape[-2]
    a = alpha.new_zeros(*alpha.shape[:-1], n)
    b = torch.zeros_like(a)
    for i, sources in _numbered(pattern, n):
        a[..., i, i] = alpha[..., i, 0]
        for c, j in enumerate(sources):
            if pattern.direct == "all":
                a[..., i, j] = alpha[..., i, 1 + c]
            if beta is not None:
                b[..., i, j] = beta[..., i, c]
    return a, b


def transfer(a: Tensor, b: Tensor) -> Tensor:
    """T = (I - B)^-1 A, dense: the weight of every input in every output."""
    identity = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
    t: Tensor = torch.linalg.solve_triangular(identity - b, a, upper=False, unitriangular=True)
    return t


def transfer_by_hops(a: Tensor, b: Tensor) -> Tensor:
    """(K, ..., N, N): T split by how often feedback was used, B^k A for k = 0, 1, …; they sum to T."""
    terms = [a]
    while len(terms) < a.shape[-1] and bool(terms[-1].any()):
        terms.append(b @ terms[-1])
    return torch.stack(terms)


def gated_softmax(inputs: Inputs, rows: Stage | Rows, scale: float) -> tuple[Tensor, Tensor | None]:
    """Attention-like coefficients: alpha = (1 - g) softmax(qa·ka), beta = g softmax(qb·kb), on the pattern.

    g is one number per token and head; where a token has nothing to feed back, g counts as 0, so that every row of
    A + B sums to one.
    """
    _, qa, ka, qb, kb, gate = inputs
    n, known = qa.shape[-2], ka.shape[-2] - qa.shape[-2]
    pattern, table = (rows.pattern, rows.table) if isinstance(rows, Rows) else (rows, rows.table(n))
    width = table.shape[1]
    alpha, beta = [], []
    for i, sources in _numbered(rows, n):
        g = gate[..., i, None] if pattern.recurrent and sources else torch.zeros_like(gate[..., i, None])
        direct = [known + i, *sources] if pattern.direct == "all" else [known + i]
        weights = (1 - g) * _scores(qa, ka, i, direct, scale).softmax(-1)
        alpha.append(_pad(weights, 1 + width if pattern.direct == "all" else 1))
        if pattern.recurrent:
            feedback = g * _scores(qb, kb, i, sources, scale).softmax(-1)
            beta.append(_pad(feedback, width))
    return torch.stack(alpha, dim=-2), torch.stack(beta, dim=-2) if beta else None


# One softmax over all of T. Unnormalized, T~ = (I - exp(R))^-1 exp(P) has row sums exp(l) with
#     l_i = logsumexp_j(p_ij, r_ij + l_j),
# which overflow long before anything else does. Dividing row i by exp(l_i) gives another recurrence, whose weights
#     w_ij = exp(p_ij - l_i),   v_ij = exp(r_ij + l_j - l_i),   sum_j w_ij + sum_j v_ij = 1
# never leave [0, 1], and y^_i = sum w_ij x_j + sum v_ij y^_j is T~ x with its rows normalized.
def joint_softmax(score_a: Tensor, score_b: Tensor, pattern: Stage) -> tuple[Tensor, Tensor]:
    """Coefficients (w, v) whose T is the row-normalized one of exp(score_a), exp(score_b). Layouts as alpha, beta."""
    w, v = [], []
    logs: list[Tensor] = []
    for i, sources in _numbered(pattern, score_a.shape[-2]):
        p = score_a[..., i, : 1 + len(sources) if pattern.direct == "all" else 1]
        r = score_b[..., i, : len(sources)]
        terms = torch.cat([p, r + torch.stack([logs[j] for j in sources], -1)] if sources else [p], dim=-1).double()
        logs.append(terms.logsumexp(-1))  # they grow with the sequence: float32 would lose what the weights need
        weights = terms.softmax(-1).to(score_a.dtype)
        w.append(_pad(weights[..., : p.shape[-1]], score_a.shape[-1]))
        v.append(_pad(weights[..., p.shape[-1] :], score_b.shape[-1]))
    return torch.stack(w, dim=-2), torch.stack(v, dim=-2)


# Weight sharing A = B D + D' (D, D' diagonal):  y = (I - B)^-1 (B D + D') x = (I - B)^-1 (D + D') x - D x,
# since (I - B)^-1 B = (I - B)^-1 - I. So only z = y + D x runs through the recurrence, and only z need be kept.
def solve_tied(x: Tensor, beta: Tensor, d: Tensor, d_prime: Tensor, pattern: Stage) -> Tensor:
    """The outputs for A = B diag(d) + diag(d'), without ever using A.  d, d_prime: (..., N)."""
    z: list[Tensor] = []
    for i, sources in _numbered(pattern, x.shape[-2]):
        z_i = (d[..., i] + d_prime[..., i])[..., None] * x[..., i, :]
        for c, j in enumerate(sources):
            z_i = z_i + beta[..., i, c, None] * z[j]
        z.append(z_i)
    return torch.stack(z, dim=-2) - d[..., None] * x


def tied_alpha(beta: Tensor, d: Tensor, d_prime: Tensor, pattern: Stage) -> Tensor:
    """The same A written out as coefficients: alpha_ii = d'_i, alpha_ij = beta_ij d_j."""
    alpha = []
    for i, sources in _numbered(pattern, beta.shape[-2]):
        shared = beta[..., i, : len(sources)] * d[..., sources]
        alpha.append(_pad(torch.cat([d_prime[..., i, None], shared], dim=-1), 1 + beta.shape[-1]))
    return torch.stack(alpha, dim=-2)


def mix(inputs: Inputs, rows: Stage | Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """`solve` with `gated_softmax` coefficients."""
    alpha, beta = gated_softmax(Inputs(*(t.to(compute_dtype(inputs.x)) for t in inputs)), rows, scale)
    return solve(inputs.x, alpha, beta, rows, y_known)


def step(token: Token, scale: float) -> Tensor:
    """One token from a cache: the same sums, over the slots that it reads."""
    if token.ragged:
        return torch.cat([step(one, scale) for one in token.by_sequence()])
    heads, dtype = token.inputs.heads, compute_dtype(token.inputs.x)
    x, qa, ka, qb, _, gate = (repeat_heads(t.to(dtype), heads)[:, :, 0] for t in token.inputs)
    slots = {name: repeat_heads(t.to(dtype), heads)[:, :, token.reads.tolist()] for name, t in token.cache.items()}
    feeds = token.recurrent and len(token.reads) > 0
    g = gate[..., None] if feeds else torch.zeros_like(gate)[..., None]
    keys, values = ka[:, :, None], x[:, :, None]
    if token.direct:
        keys, values = torch.cat([keys, slots["keys_a"]], 2), torch.cat([values, slots["values"]], 2)
    weights = ((qa[:, :, None] * keys).sum(-1) * scale).softmax(-1)
    y = (1 - g) * (weights[..., None] * values).sum(2)
    if feeds:
        scores = slots["outputs"].new_zeros(slots["outputs"].shape[:-1])
        if "keys_b" in slots:
            scores = (qb[:, :, None] * slots["keys_b"]).sum(-1) * scale
        y = y + g * (scores.softmax(-1)[..., None] * slots["outputs"]).sum(2)
    y = y.to(token.inputs.x.dtype)
    (write,) = token.writes
    if write >= 0:
        new = {"values": token.inputs.x, "keys_a": token.inputs.ka, "outputs": y[:, :, None], "keys_b": token.inputs.kb}
        for name, kept in token.cache.items():
            kept[:, :, write] = new[name][:, :, 0]
    return y[:, :, None]


def _numbered(rows: Stage | Rows, n: int) -> Iterator[tuple[int, list[int]]]:
    """Each new row with its sources, nearest first."""
    if isinstance(rows, Rows):
        return ((i, [j for j in row if j >= 0]) for i, row in enumerate(rows.table.tolist()))
    return ((i, rows.sources(i)[::-1].tolist()) for i in range(n))


def _scores(q: Tensor, k: Tensor, i: int, positions: list[int], scale: float) -> Tensor:
    return (q[..., i, None, :] * k[..., positions, :]).sum(-1) * scale


def _pad(weights: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(weights, (0, width - weights.shape[-1]))
