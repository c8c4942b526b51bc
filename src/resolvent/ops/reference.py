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

from resolvent.ops.rows import Rows
from resolvent.patterns import Pattern


def solve(
    x: Tensor, alpha: Tensor, beta: Tensor | None, where: Pattern | Rows, y_known: Tensor | None = None
) -> Tensor:
    """y_i = sum_j alpha_ij x_j + sum_{j<i} beta_ij y_j.  x: (..., N, D), with known rows first if there are any."""
    pattern = where.pattern if isinstance(where, Rows) else where
    y: list[Tensor] = [] if y_known is None else list(y_known.unbind(-2))
    known = len(y)
    for i, sources in _rows(where, x.shape[-2]):
        y_i = alpha[..., i, 0, None] * x[..., known + i, :]
        for c, j in enumerate(sources):
            if pattern.direct == "all":
                y_i = y_i + alpha[..., i, 1 + c, None] * x[..., j, :]
            if beta is not None:
                y_i = y_i + beta[..., i, c, None] * y[j]
        y.append(y_i)
    return torch.stack(y[known:], dim=-2)


# The adjoint. Let U = A x, so that (I - B) y = U and a loss with gradient dY = dL/dy has
#     dU = (I - B)^-T dY:   dU_j = dY_j + sum_{i reads j} beta_ij dU_i      the same recurrence, read from the end
# From dL = <dU, d(A x) + dB y> (differentiate (I - B) y = A x) follow
#     dalpha_ij = <dU_i, x_j>,    dbeta_ij = <dU_i, y_j>,    dX = A^T dU.
def solve_adjoint(
    grad_y: Tensor, x: Tensor, y: Tensor, alpha: Tensor, beta: Tensor | None, pattern: Pattern
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of `solve` with respect to x, alpha and beta, in one reverse sweep."""
    grad_u = grad_y.clone()
    grad_x, grad_alpha = torch.zeros_like(x), torch.zeros_like(alpha)
    grad_beta = None if beta is None else torch.zeros_like(beta)
    for i, sources in reversed(list(_rows(pattern, x.shape[-2]))):
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


def matrices(alpha: Tensor, beta: Tensor | None, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """A and B written out as (..., N, N)."""
    n = alpha.shape[-2]
    a = alpha.new_zeros(*alpha.shape[:-1], n)
    b = torch.zeros_like(a)
    for i, sources in _rows(pattern, n):
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


def gated_softmax(
    qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, where: Pattern | Rows, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Attention-like coefficients: alpha = (1 - g) softmax(qa·ka), beta = g softmax(qb·kb), on the pattern.

    g is one number per token and head; where a token has nothing to feed back, g counts as 0, so that every row of
    A + B sums to one.
    """
    n, known = qa.shape[-2], ka.shape[-2] - qa.shape[-2]
    pattern, table = (where.pattern, where.table) if isinstance(where, Rows) else (where, where.table(n))
    width = table.shape[1]
    alpha, beta = [], []
    for i, sources in _rows(where, n):
        g = gate[..., i, None] if pattern.recurrent and sources else torch.zeros_like(gate[..., i, None])
        direct = [known + i, *sources] if pattern.direct == "all" else [known + i]
        weights = (1 - g) * _scores(qa, ka, i, direct, scale).softmax(-1)
        alpha.append(_pad(weights, 1 + width if pattern.direct == "all" else 1))
        if pattern.recurrent:
            feedback = g * _scores(qb, kb, i, sources, scale).softmax(-1)
            beta.append(_pad(feedback, width))
    return torch.stack(alpha, dim=-2), torch.stack(beta, dim=-2) if beta else None


# Softmax over the whole of T. Unnormalised, T~ = (I - exp(R))^-1 exp(P) has row sums exp(l) with
#     l_i = logsumexp_j(p_ij, r_ij + l_j),
# which overflow long before anything else does. Dividing row i by exp(l_i) gives another recurrence, whose weights
#     w_ij = exp(p_ij - l_i),   v_ij = exp(r_ij + l_j - l_i),   sum_j w_ij + sum_j v_ij = 1
# never leave [0, 1], and y^_i = sum w_ij x_j + sum v_ij y^_j is T~ x with its rows normalised.
def whole_softmax(score_a: Tensor, score_b: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Coefficients (w, v) whose T is the row-normalised one of exp(score_a), exp(score_b). Layouts as alpha, beta."""
    w, v = [], []
    logs: list[Tensor] = []
    for i, sources in _rows(pattern, score_a.shape[-2]):
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
def solve_tied(x: Tensor, beta: Tensor, d: Tensor, d_prime: Tensor, pattern: Pattern) -> Tensor:
    """Y for A = B diag(d) + diag(d'), without ever using A.  d, d_prime: (..., N)."""
    z: list[Tensor] = []
    for i, sources in _rows(pattern, x.shape[-2]):
        z_i = (d[..., i] + d_prime[..., i])[..., None] * x[..., i, :]
        for c, j in enumerate(sources):
            z_i = z_i + beta[..., i, c, None] * z[j]
        z.append(z_i)
    return torch.stack(z, dim=-2) - d[..., None] * x


def tied_alpha(beta: Tensor, d: Tensor, d_prime: Tensor, pattern: Pattern) -> Tensor:
    """The same A written out as coefficients: alpha_ii = d'_i, alpha_ij = beta_ij d_j."""
    rows = []
    for i, sources in _rows(pattern, beta.shape[-2]):
        shared = beta[..., i, : len(sources)] * d[..., sources]
        rows.append(_pad(torch.cat([d_prime[..., i, None], shared], dim=-1), 1 + beta.shape[-1]))
    return torch.stack(rows, dim=-2)


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    where: Pattern | Rows, scale: float, y_known: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`solve` with `gated_softmax` coefficients."""
    alpha, beta = gated_softmax(qa, ka, qb, kb, gate, where, scale)
    return solve(x, alpha, beta, where, y_known)


def _rows(where: Pattern | Rows, n: int) -> Iterator[tuple[int, list[int]]]:
    """Each new row with its sources, nearest first."""
    if isinstance(where, Rows):
        return ((i, [j for j in row if j >= 0]) for i, row in enumerate(where.table.tolist()))
    return ((i, where.sources(i)[::-1].tolist()) for i in range(n))


def _scores(q: Tensor, k: Tensor, i: int, positions: list[int], scale: float) -> Tensor:
    return (q[..., i, None, :] * k[..., positions, :]).sum(-1) * scale


def _pad(weights: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(weights, (0, width - weights.shape[-1]))
