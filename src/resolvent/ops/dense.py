"""Where every token reads every earlier one: almost all of it is matrix products, and memory is never n².

`mix` splits into two operations of `dense_blocks`: attention for the direct part, then the feedback. `solve` has n²
coefficients given, and writes out one block row of A and B after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from resolvent.ops import dense_blocks as blocks
from resolvent.ops.rows import Rows
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Contiguous


def handles(pattern: Pattern) -> bool:
    """Whether every token reads every earlier one."""
    return pattern.strides == Contiguous(None)


def require(pattern: Pattern) -> None:
    if not handles(pattern):
        raise ValueError(refusal(str(pattern)))


def refusal(spelling: str) -> str:
    return (
        "backend 'dense' expects a pattern in which every token reads every earlier one, such as 'dense' or "
        f"'attention', got '{spelling}': use backend='cpu' or 'torch' for it."
    )


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    where: Rows, scale: float, y_known: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`reference.mix` for dense patterns. Half precision is computed in float32."""
    require(where.pattern)
    if x.numel() == 0 or where.new == 0:
        return x[..., where.known :, :]
    if not where.pattern.recurrent and len(where.cuts) == 2 and not where.known and not torch.is_grad_enabled():
        return scaled_dot_product_attention(qa, ka, x, is_causal=True, scale=scale)  # attention, and nothing else
    d, width = x.shape[-1], max(x.shape[-1], qa.shape[-1])  # the fused kernels want one width for all
    y_known = x[..., :0, :] if y_known is None else y_known
    given = [_flat(gate[..., None], 1), *(_flat(t, width) for t in (qa, qb, x, ka, kb))]
    known = _flat(y_known, width)
    parts = []
    for gate, qa, qb, x_, ka, kb in _sequences(given, where):
        y = x_[:, where.known :] if where.pattern.direct == "diagonal" else blocks.attention(qa, ka, x_, scale)
        if where.pattern.recurrent:
            y = blocks.feedback(y, qb * scale, kb, gate[..., 0], known)
        parts.append(y)
    y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return y.reshape(*x.shape[:-2], where.new, width)[..., :d].to(x.dtype)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, where: Rows, y_known: Tensor | None = None) -> Tensor:
    """`reference.solve` for dense patterns: block rows of A and B are written out, one after another."""
    require(where.pattern)
    if x.numel() == 0 or where.new == 0:
        return x[..., where.known :, :]
    y_known = x[..., :0, :] if y_known is None else y_known
    given = [_flat(t, t.shape[-1]) for t in (alpha, alpha if beta is None else beta, x)]
    known = _flat(y_known, x.shape[-1])
    parts = []
    for alpha_, beta_, x_ in _sequences(given, where):
        y = known
        for first in range(0, alpha_.shape[1], blocks.BLOCK):
            rows = slice(first, first + blocks.BLOCK)
            u = _direct(alpha_[:, rows], x_, where.known + first)
            y = torch.cat([y, u if beta is None else _substitute(beta_[:, rows], u, y)], 1)
        parts.append(y[:, where.known :])
    return torch.cat(parts, 1).reshape(*x.shape[:-2], where.new, x.shape[-1]).to(x.dtype)


def _direct(alpha: Tensor, x: Tensor, first: int) -> Tensor:
    """Rows of A x, of which the first is row `first` of x."""
    last = first + alpha.shape[1]
    if alpha.shape[2] == 1:
        return alpha * x[:, first:last]
    return _by_position(alpha, first, 0) @ x[:, :last]


def _substitute(beta: Tensor, u: Tensor, y: Tensor) -> Tensor:
    """The outputs of one block of rows, all earlier ones being y."""
    if beta.shape[2] == 0:
        return u
    b = _by_position(beta, y.shape[1], 1)
    far, near = b[..., : y.shape[1]], b[..., y.shape[1] :]
    return blocks.solve_unit_lower(-near, u + far @ y)


def _by_position(coefficients: Tensor, first: int, nearest: int) -> Tensor:
    """(rows, first + rows): column j for the source j, where coefficients are ordered from the nearest on."""
    rows = torch.arange(first, first + coefficients.shape[1], device=coefficients.device)[:, None]
    columns = rows - nearest - torch.arange(first + coefficients.shape[1], device=coefficients.device)
    index = columns.clamp(0, coefficients.shape[2] - 1).expand(coefficients.shape[0], -1, -1)
    return coefficients.gather(2, index).masked_fill(columns < 0, 0)


def _sequences(given: list[Tensor], where: Rows) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of each sequence that has rows at all. (Known rows come with one sequence only: all stay whole.)"""
    sizes = [after - before for before, after in pairwise(where.cuts)]
    if len(sizes) == 1:
        return iter([tuple(given)])
    return (tensors for tensors in zip(*(torch.split(t, sizes, 1) for t in given), strict=True) if tensors[0].shape[1])


def _flat(t: Tensor, width: int) -> Tensor:
    """(heads, rows, columns) in float64 or float32, widened with zeros."""
    t = t if t.dtype == torch.float64 else t.float()
    t = t.flatten(0, 1)
    return t if width == t.shape[-1] else pad(t, (0, width - t.shape[-1]))  # to pad with nothing would be a copy
