"""`mix` as an operator that `torch.compile` and `torch.export` take as it is, with its own gradient.

Outside of them `autograd.Function` serves better: an operator gives silently wrong forward-mode derivatives, and every
call costs more. What a graph cannot hold goes in as text and numbers: a pattern's spelling, the cuts, a backend's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.ops.backend import Backend, SplitBackend
from resolvent.ops.inputs import Inputs
from resolvent.ops.registry import find
from resolvent.ops.rows import Rows, rows_of
from resolvent.patterns import Stage, pattern

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

Settings = tuple[str, Sequence[int], float, str]  # a pattern's spelling, cuts, scale, a backend's name


def mix(inputs: Inputs, spelling: str, cuts: Sequence[int], scale: float, backend: str) -> Tensor:
    y: Tensor = _mix(list(inputs), spelling, cuts, scale, backend)[0]
    return y


@torch.library.custom_op("resolvent::mix", mutates_args=())
def _mix(
    inputs: Sequence[Tensor], spelling: str, cuts: Sequence[int], scale: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, and what the backward pass wants to know of the forward one."""
    rows, runs = _rows(spelling, cuts), find(backend)
    if isinstance(runs, SplitBackend):
        return runs.forward(inputs, rows, scale)
    y = runs.mix(Inputs(*inputs), rows, scale)
    return y.clone(memory_format=torch.contiguous_format), *_nothing(inputs)


@torch.library.custom_op("resolvent::mix_backward", mutates_args=())
def _mix_backward(
    grad_y: Tensor, saved: Sequence[Tensor], spelling: str, cuts: Sequence[int], scale: float, backend: str
) -> list[Tensor]:
    """Gradients of the six inputs; `saved` has all that the forward pass gave, and the inputs."""
    outputs, inputs, rows, runs = saved[:3], saved[3:], _rows(spelling, cuts), find(backend)
    if isinstance(runs, SplitBackend):
        gradients = runs.backward(grad_y, outputs, inputs, rows, scale)
    else:  # in a thread of its own, because within an operator autograd is switched off for this one
        with ThreadPoolExecutor(1) as pool:
            gradients = pool.submit(_differentiate, grad_y, inputs, rows, scale, runs).result()
    return [t.clone(memory_format=torch.contiguous_format) for t in gradients[:6]]


def _differentiate(
    grad_y: Tensor, inputs: Sequence[Tensor], rows: Rows, scale: float, backend: Backend
) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = backend.mix(Inputs(*leaves), rows, scale)
    return torch.autograd.grad(y, leaves, grad_y, allow_unused=True, materialize_grads=True)


@_mix.register_fake
def _(inputs: Sequence[Tensor], *settings: object) -> tuple[Tensor, Tensor, Tensor]:
    runs = find(str(settings[3]))
    kept = runs.saved_like(inputs, _stage(str(settings[0]))) if isinstance(runs, SplitBackend) else _nothing(inputs)
    return torch.empty_like(inputs[0], memory_format=torch.contiguous_format), *kept


@_mix_backward.register_fake
def _(_: Tensor, saved: Sequence[Tensor], *settings: object) -> list[Tensor]:  # noqa: ARG001
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in saved[3:]]


def _nothing(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return inputs[0].new_empty(0), inputs[0].new_empty(0)


def _setup_context(ctx: Context, inputs: tuple[Sequence[Tensor], *Settings], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[0])
    ctx.settings = inputs[1:]


def _backward(ctx: Context, grad_y: Tensor, *_: Tensor) -> tuple[list[Tensor] | None, ...]:
    gradients: list[Tensor] = _mix_backward(grad_y, list(ctx.saved_tensors), *ctx.settings)
    return gradients, None, None, None, None


_mix.register_autograd(_backward, setup_context=_setup_context)


def _rows(spelling: str, cuts: Sequence[int]) -> Rows:
    return rows_of(_stage(spelling), tuple(int(cut) for cut in cuts))


def _stage(spelling: str) -> Stage:
    """The only one: a pair is traced as two operators."""
    (stage,) = pattern(spelling).stages
    return stage
