"""The paper's own way: full masked matrices and a dense triangular solve, quadratic whatever the pattern.

Here to be compared with. Rows known from before are columns of the matrices, but there is no cache to decode from.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from resolvent.ops.backend import Request, Token
from resolvent.ops.inputs import Inputs
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.patterns.pattern import Mask

NAME = "paper"
_NO_CACHE = "backend 'paper' has no decode cache."


def refusal(request: Request) -> str | None:
    if request.operation == "extend":
        return _NO_CACHE
    return None


def preference(request: Request) -> str | None:  # noqa: ARG001
    return None


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    dtype = compute_dtype(inputs.x)
    x, qa, ka, qb, kb, gate = (t.to(dtype) for t in inputs)
    reads, itself, has_source = (torch.from_numpy(mask).to(x.device) for mask in rows.plan(_masks))
    u, g = x[..., rows.known :, :], (gate * has_source)[..., None] if rows.pattern.recurrent else 0
    if rows.pattern.direct == "all":
        u = (qa @ ka.mT * scale).masked_fill(~(reads | itself), -torch.inf).softmax(-1) @ x
    if not rows.pattern.recurrent:
        return u.to(inputs.x.dtype)
    scores = qb @ kb.mT * scale if rows.width > 1 else reads.to(dtype)
    weights = scores.masked_fill(~(reads | ~has_source[:, None]), -torch.inf).softmax(-1) * reads
    return _resolve((1 - g) * u, g * weights, rows, y_known).to(inputs.x.dtype)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    dtype = compute_dtype(x)
    u = (alpha[..., :1] * x[..., rows.known :, :]).to(dtype)
    if rows.pattern.direct == "all":
        u = u + _written_out(alpha[..., 1:], rows).to(dtype) @ x.to(dtype)
    if beta is None:
        return u.to(x.dtype)
    return _resolve(u, _written_out(beta, rows).to(dtype), rows, y_known).to(x.dtype)


def step(token: Token, scale: float) -> Tensor:
    raise NotImplementedError(_NO_CACHE)  # the registry asks `refusal` first


def _resolve(u: Tensor, b: Tensor, rows: Rows, y_known: Tensor | None) -> Tensor:
    if rows.known and y_known is not None:
        u = u + b[..., : rows.known] @ y_known.to(u.dtype)
    left = torch.eye(rows.new, dtype=u.dtype, device=u.device) - b[..., rows.known :]
    y: Tensor = torch.linalg.solve_triangular(left, u, upper=False, unitriangular=True)
    return y


def _masks(rows: Rows) -> tuple[Mask, Mask, Mask]:
    """(new, known + new) who reads whom and the rows themselves; (new,) which rows have a source."""
    reads = np.zeros((rows.new, rows.known + rows.new), dtype=np.bool_)
    row, column = np.nonzero(rows.table >= 0)
    reads[row, rows.table[row, column]] = True
    itself = np.eye(rows.new, rows.known + rows.new, rows.known, dtype=np.bool_)
    has_source: Mask = np.asarray(reads.any(1))
    return reads, itself, has_source


def _written_out(coefficients: Tensor, rows: Rows) -> Tensor:
    """(…, new, known + new) from the columns of a row's sources, whatever stands beyond them."""
    table = torch.from_numpy(rows.table).long().to(coefficients.device)
    columns = table.where(table >= 0, rows.known + rows.new)
    full = coefficients.new_zeros((*coefficients.shape[:-1], rows.known + rows.new + 1))
    values = torch.where(table >= 0, coefficients, 0)
    return full.scatter(-1, columns.expand(values.shape), values)[..., :-1]
