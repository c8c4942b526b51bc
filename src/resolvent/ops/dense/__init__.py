"""Where every token reads every earlier one: almost all of it is matrix products, and memory is never n².

`mix` splits into two operations of `blocks`: attention for the direct part, then the feedback. `solve` has n²
explicit coefficients, and writes out one block row of A and B after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from resolvent.ops import cpu
from resolvent.ops.backend import Request, Token
from resolvent.ops.dense import blocks
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import Rows

NAME = "dense"
_LONG = 768  # tokens from which matrix products beat the kernels for the dense recurrence (docs/log.md)


def refusal(request: Request) -> str | None:
    if request.is_dense:
        return None
    return (
        "backend 'dense' expects a pattern in which every token reads every earlier one, such as 'dense' or "
        f"'attention', got '{request.pattern}'."
    )


def preference(request: Request) -> str | None:
    written_out = request.operation == "solve" or (request.normalize == "joint" and request.recurrent)
    short = request.device == "cpu" and request.recurrent and request.tokens < _LONG
    if not request.is_dense or written_out or short:  # coefficients that are written out are n × W in any case
        return None
    return "every token reads every earlier one, and matrix products do that best"


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    x = inputs.x
    if x.numel() == 0 or rows.new == 0:
        return x[..., rows.known :, :]
    plain = not rows.pattern.recurrent and len(rows.cuts) == 2 and not rows.known and scale > 0
    if plain and not torch.is_grad_enabled():
        return scaled_dot_product_attention(inputs.qa, inputs.ka, x, is_causal=True, scale=scale)
    d, width = x.shape[-1], max(x.shape[-1], inputs.key_dim)  # the fused kernels want one width for all
    known = _flat(x[..., :0, :] if y_known is None else y_known, width)
    by_rows = [_flat(inputs.gate[..., None], 1), *(_flat(t, width) for t in (inputs.qa, inputs.qb))]
    by_keys = [_flat(t, width) for t in (x, inputs.ka, inputs.kb)]
    outputs = []
    for gate, qa, qb, values, ka, kb in _sequences([*by_rows, *by_keys], rows):
        diagonal = rows.pattern.direct == "diagonal"
        y = values[:, rows.known :] if diagonal else blocks.attention(qa, ka, values, scale)
        if rows.pattern.recurrent:
            y = blocks.feedback(y, qb * scale, kb, gate[..., 0], known)
        outputs.append(y)
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    return y.reshape(*x.shape[:-2], rows.new, width)[..., :d].to(x.dtype)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.solve`: block rows of A and B are written out, one after another."""
    if x.numel() == 0 or rows.new == 0:
        return x[..., rows.known :, :]
    known = _flat(x[..., : rows.known, :] if y_known is None else y_known, x.shape[-1])  # without feedback, not read
    tensors = [_flat(t, t.shape[-1]) for t in (alpha, alpha if beta is None else beta, x)]
    outputs = []
    for alpha_, beta_, x_ in _sequences(tensors, rows):
        y = known
        for first in range(0, alpha_.shape[1], blocks.BLOCK):
            block = slice(first, first + blocks.BLOCK)
            u = _direct(alpha_[:, block], x_, rows.known + first)
            y = torch.cat([y, u if beta is None else _substitute(beta_[:, block], u, y)], 1)
        outputs.append(y[:, rows.known :])
    return torch.cat(outputs, 1).reshape(*x.shape[:-2], rows.new, x.shape[-1]).to(x.dtype)


def step(token: Token, scale: float) -> Tensor:
    """A single token has no matrices to multiply: the kernel for one token does it."""
    return cpu.step(token, scale)


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


def _sequences(tensors: list[Tensor], rows: Rows) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of each sequence that has rows. (Known rows come with one sequence only, which is not split.)"""
    sizes = [after - before for before, after in pairwise(rows.cuts)]
    if len(sizes) == 1:
        return iter([tuple(tensors)])
    return (each for each in zip(*(torch.split(t, sizes, 1) for t in tensors), strict=True) if each[0].shape[1])


def _flat(t: Tensor, width: int) -> Tensor:
    """(heads, rows, columns) in float64 or float32, widened with zeros."""
    t = t if t.dtype == torch.float64 else t.float()
    t = t.flatten(0, 1)
    return t if width == t.shape[-1] else pad(t, (0, width - t.shape[-1]))  # to pad with nothing would be a copy
