"""Gradients of `mix` and `solve` that can be differentiated again: of the portable backend, for those with kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from resolvent.ops import portable
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import Rows


def mix_gradients(
    grad_y: Tensor, inputs: Sequence[Tensor], y_known: Tensor, rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """Of the inputs and of the known outputs, from those of all outputs; differentiable any number of times."""
    known = rows.known

    def run(*tensors: Tensor) -> Tensor:
        return portable.mix(Inputs(*tensors[:6]), rows, scale, tensors[6] if known else None)

    pull = torch.func.vjp(run, *inputs, y_known)[1]
    *gradients, grad_known = pull(grad_y[:, :, known:])
    return *gradients, grad_known + grad_y[:, :, :known]


def solve_gradients(grad_y: Tensor, inputs: Sequence[Tensor], y_known: Tensor, rows: Rows) -> tuple[Tensor, ...]:
    """Of the inputs and of the known outputs, from those of all outputs; differentiable any number of times."""
    known = rows.known

    def run(x: Tensor, alpha: Tensor, beta: Tensor, y_before: Tensor) -> Tensor:
        feedback = beta if rows.pattern.recurrent else None
        return portable.solve(x, alpha, feedback, rows, y_before if known else None)

    pull = torch.func.vjp(run, *inputs, y_known)[1]
    *gradients, grad_known = pull(grad_y[:, :, known:])
    return *gradients, grad_known + grad_y[:, :, :known]
