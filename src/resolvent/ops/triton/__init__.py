"""The backend for GPUs: fused kernels written in Triton, two launches forward, at most six back, one per decoded token.

Triton itself is imported with the first call. Without a GPU the kernels run on a CPU in Triton's interpreter, if
TRITON_INTERPRET=1 is set before Triton is imported: slowly, to check them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from resolvent.ops.backend import Request, Token
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import Rows
from resolvent.ops.triton.sizes import LARGEST_DIM
from resolvent.patterns import Stage

NAME = "triton"
_GATED_ONLY = "backend 'triton' computes gated softmax coefficients itself, and takes neither others nor joint ones."


def refusal(request: Request) -> str | None:
    if find_spec("triton") is None:
        return "backend 'triton' needs the package triton: pip install triton."
    if request.device != "cuda" and not (interpreting() and request.device == "cpu"):
        return (
            f"backend 'triton' needs tensors on a GPU (CUDA or ROCm), got {request.device}; "
            "to check its kernels on a CPU, set TRITON_INTERPRET=1."
        )
    if request.operation == "solve" or request.normalize == "joint":
        return _GATED_ONLY
    if request.is_dense:
        return f"backend 'triton' expects a sparse pattern, got '{request.pattern}', whose weights are n × n."
    if request.dtype == torch.float64 and not interpreting():
        return "backend 'triton' computes in float32: expected float32, bfloat16 or float16, got float64."
    if request.dim > LARGEST_DIM:
        return f"backend 'triton' takes heads of at most {LARGEST_DIM} channels, got {request.dim}."
    return None


def preference(request: Request) -> str | None:
    if request.device != "cuda" or request.is_dense:
        return None
    return "the tensors are on a GPU, and fused kernels cover every sparse pattern there"


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    from resolvent.ops.triton import fused

    return fused.mix(inputs, rows, scale, y_known)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    raise NotImplementedError(_GATED_ONLY)  # the registry asks `refusal` first


def step(token: Token, scale: float) -> Tensor:
    """See `Backend.step`."""
    from resolvent.ops.triton import decode

    return decode.step(token, scale)


def forward(inputs: Sequence[Tensor], rows: Rows, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """See `SplitBackend.forward`."""
    from resolvent.ops.triton import fused

    return fused.forward(inputs, rows, scale)


def saved_like(inputs: Sequence[Tensor], pattern: Stage) -> tuple[Tensor, Tensor]:
    """See `SplitBackend.saved_like`."""
    from resolvent.ops.triton import fused

    return fused.saved_like(inputs, pattern)


def backward(
    grad_y: Tensor, saved: Sequence[Tensor], inputs: Sequence[Tensor], rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """See `SplitBackend.backward`."""
    from resolvent.ops.triton import fused

    return fused.backward(grad_y, saved, inputs, rows, scale)
