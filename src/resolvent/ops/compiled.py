"""`mix` as an operator that `torch.compile` and `torch.export` take as it is, with its own gradient.

Outside of them `autograd.Function` serves better: an operator gives silently wrong forward-mode derivatives, and every
call costs more. What a graph cannot hold goes in as text and numbers: a pattern's spelling, the cuts, a backend's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.ops import cpu, dense, portable, reference
from resolvent.ops.rows import Rows, rows
from resolvent.patterns import pattern

_BACKENDS = {"cpu": cpu, "dense": dense, "torch": portable, "reference": reference}


@torch.library.custom_op("resolvent::mix", mutates_args=())
def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    spelling: str, cuts: Sequence[int], scale: float, backend: str,
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        return _run((x, qa, ka, qb, kb, gate), _where(spelling, cuts), scale, backend).clone()


@torch.library.custom_op("resolvent::mix_backward", mutates_args=())
def mix_backward(
    grad_y: Tensor, x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    spelling: str, cuts: Sequence[int], scale: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward sweep again, and back: compared with the sweep itself, keeping its output would save little."""
    inputs = [t.detach().requires_grad_() for t in (x, qa, ka, qb, kb, gate)]
    with torch.enable_grad():
        y = _run(inputs, _where(spelling, cuts), scale, backend)
    found = torch.autograd.grad(y, inputs, grad_y, allow_unused=True, materialize_grads=True)
    dx, dqa, dka, dqb, dkb, dgate = (t.clone(memory_format=torch.contiguous_format) for t in found)
    return dx, dqa, dka, dqb, dkb, dgate


@mix.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@mix_backward.register_fake
def _(grad_y: Tensor, *arguments: Any) -> tuple[Tensor, ...]:  # noqa: ARG001
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in arguments[:6])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:6])
    ctx.settings = inputs[6:]


def _backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    return *mix_backward(grad_y, *ctx.saved_tensors, *ctx.settings), None, None, None, None


mix.register_autograd(_backward, setup_context=_keep)


def _where(spelling: str, cuts: Sequence[int]) -> Rows:
    return rows(pattern(spelling), tuple(int(cut) for cut in cuts))


def _run(inputs: Sequence[Tensor], where: Rows, scale: float, backend: str) -> Tensor:
    y: Tensor = _BACKENDS[backend].mix(*inputs, where, scale)
    return y
