"""`mix` as an operator that `torch.compile` and `torch.export` take as it is, with its own gradient.

Outside of them `autograd.Function` serves better: an operator gives silently wrong forward-mode derivatives, and every
call costs more. What a graph cannot hold goes in as text and numbers: a pattern's spelling, the cuts, a backend's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from resolvent.ops import cpu, dense, portable, reference
from resolvent.ops.cpu_forward import STATS
from resolvent.ops.rows import Rows, rows
from resolvent.patterns import pattern

_BACKENDS = {"cpu": cpu, "dense": dense, "torch": portable, "reference": reference}


@torch.library.custom_op("resolvent::mix", mutates_args=())
def _mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    spelling: str, cuts: Sequence[int], scale: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs, and what the backward sweep of the kernels wants to know of the forward one."""
    where, inputs = _where(spelling, cuts), (x, qa, ka, qb, kb, gate)
    if backend == "cpu":
        return cpu.sweep(inputs, where, scale)
    y: Tensor = _BACKENDS[backend].mix(*inputs, where, scale)
    return y.clone(memory_format=torch.contiguous_format), _no_stats(gate)


@torch.library.custom_op("resolvent::mix_backward", mutates_args=())
def _mix_backward(
    grad_y: Tensor, y: Tensor, stats: Tensor,
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    spelling: str, cuts: Sequence[int], scale: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    where, inputs = _where(spelling, cuts), (x, qa, ka, qb, kb, gate)
    if backend == "cpu":
        found = cpu.sweep_back(grad_y, y, stats, inputs, where, scale)
    else:  # in a thread of its own, because within an operator autograd is switched off for this one
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(_differentiate, grad_y, inputs, where, scale, backend).result()
    dx, dqa, dka, dqb, dkb, dgate = (t.clone(memory_format=torch.contiguous_format) for t in found[:6])
    return dx, dqa, dka, dqb, dkb, dgate


def _differentiate(
    grad_y: Tensor, inputs: Sequence[Tensor], where: Rows, scale: float, backend: str
) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = _BACKENDS[backend].mix(*leaves, where, scale)
    return torch.autograd.grad(y, leaves, grad_y, allow_unused=True, materialize_grads=True)


@_mix.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, gate, backend = arguments[0], arguments[5], arguments[9]
    stats = gate.new_empty((*gate.shape, STATS), dtype=cpu.working_dtype(x)) if backend == "cpu" else _no_stats(gate)
    return torch.empty_like(x, memory_format=torch.contiguous_format), stats


@_mix_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in arguments[3:9])


def _no_stats(gate: Tensor) -> Tensor:
    return gate.new_empty(0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.settings = inputs[6:]


def _backward(ctx: Any, grad_y: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_mix_backward(grad_y, *ctx.saved_tensors, *ctx.settings), None, None, None, None


_mix.register_autograd(_backward, setup_context=_keep)


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor,
    spelling: str, cuts: Sequence[int], scale: float, backend: str,
) -> Tensor:  # fmt: skip
    working = cpu.working_dtype(x)
    given = [t.to(working) for t in (x, qa, ka, qb, kb, gate)]
    y: Tensor = _mix(*given, spelling, cuts, scale, backend)[0]
    return y.to(x.dtype)


def _where(spelling: str, cuts: Sequence[int]) -> Rows:
    return rows(pattern(spelling), tuple(int(cut) for cut in cuts))
