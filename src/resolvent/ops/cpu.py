"""The fast backend for a CPU: Numba kernels over heads, driven by a pool of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.ops import cpu_kernels as kernels
from resolvent.ops import cpu_solve
from resolvent.ops.rows import rows
from resolvent.patterns import Pattern
from resolvent.patterns.strides import Integers


@dataclass(frozen=True, eq=False)
class Plan:
    """Who reads whom on n tokens, as the kernels want it: strides, or a table of sources where reads are rounded."""

    offsets: Integers
    table: np.ndarray[Any, np.dtype[np.int32]]
    widths: Integers


@lru_cache(maxsize=32)
def plan(pattern: Pattern, n: int) -> Plan:
    if pattern.period(n) == 1:
        offsets = np.array(pattern.offsets(n))
        widths = np.searchsorted(offsets, np.arange(n), side="right")
        return Plan(offsets, np.empty((0, 0), dtype=np.int32), widths)
    table = rows(pattern, (0, n)).table
    return Plan(np.empty(0, dtype=np.int64), table, (table >= 0).sum(1))


def mix(
    x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, pattern: Pattern, scale: float
) -> Tensor:
    """`reference.mix`, fused. float32 and float64 as they are; half precision is computed in float32."""
    working = _working_dtype(x)
    y, _, _ = _Mix.apply(*(t.to(working) for t in (x, qa, ka, qb, kb, gate)), pattern, scale)  # type: ignore[no-untyped-call]
    return y.to(x.dtype)  # type: ignore[no-any-return]


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, pattern: Pattern) -> Tensor:
    """`reference.solve`, row by row but compiled."""
    working = _working_dtype(x)
    given = x.new_empty((*x.shape[:-1], 0)) if beta is None else beta
    y: Tensor = _Solve.apply(x.to(working), alpha.to(working), given.to(working), pattern)  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


class _Mix(torch.autograd.Function):
    """Stores inputs, outputs and two numbers per row; the backward sweep recomputes the weights."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, pattern, scale = arguments
        inputs = [t.detach().contiguous() for t in tensors]
        x = inputs[0]
        y = torch.empty_like(x)
        lse_a, lse_b = (x.new_empty(x.shape[:-1]).zero_() for _ in range(2))
        _over_heads(kernels.forward, [*inputs, y, lse_a, lse_b], pattern, inputs[1].shape[-1], _scalar(x, scale))
        return y, lse_a, lse_b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.pattern, scale = inputs
        y, lse_a, lse_b = output
        ctx.settings = (tensors[1].shape[-1], _scalar(y, scale))
        ctx.mark_non_differentiable(lse_a, lse_b)
        ctx.save_for_backward(*tensors, y, lse_a, lse_b)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _Adjoint.apply(kernels.backward, 6, ctx.pattern, ctx.settings, grad_y, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return *gradients, None, None


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        *tensors, pattern = arguments
        inputs = [t.detach().contiguous() for t in tensors]
        y = torch.empty_like(inputs[0])
        _over_heads(cpu_solve.forward, [*inputs, y], pattern, inputs[1].shape[-1], inputs[2].shape[-1])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.pattern = inputs
        ctx.settings = (tensors[1].shape[-1], tensors[2].shape[-1])
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _Adjoint.apply(cpu_solve.backward, 3, ctx.pattern, ctx.settings, grad_y, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return *gradients, None


class _Adjoint(torch.autograd.Function):
    """A backward sweep as an operation of its own, so that `torch.func` can see through it."""

    @staticmethod
    def forward(
        kernel: Callable[..., None], count: int, pattern: Pattern, settings: Any, grad_y: Tensor, *stored: Tensor
    ) -> tuple[Tensor, ...]:
        """Gradients of the first `count` stored tensors."""
        saved = [t.detach().contiguous() for t in stored]
        gradients = [_zeros_like(t) for t in saved[:count]]
        du = grad_y.detach().clone(memory_format=torch.contiguous_format)
        _over_heads(kernel, [*saved, du, *gradients], pattern, *settings)
        return tuple(gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError("backend 'cpu' has no second derivatives: use backend='reference' where you need them.")


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _scalar(like: Tensor, value: float) -> Any:
    """A NumPy scalar of the tensor's type: a Python float would make the kernels compute in double."""
    return np.float64(value) if like.dtype == torch.float64 else np.float32(value)


def _zeros_like(t: Tensor) -> Tensor:
    """`torch.zeros_like` asks for untouched pages, and touching those is ten times slower than clearing used ones."""
    return torch.empty_like(t).zero_()


def _over_heads(kernel: Callable[..., None], tensors: list[Tensor], pattern: Pattern, *settings: Any) -> None:
    """Run a kernel over all batch × heads, split between the threads torch would use."""
    batch, heads, n, d = tensors[0].shape
    p = plan(pattern, n)
    arguments = [t.reshape(-1).numpy() for t in tensors] + [p.offsets, p.table, p.widths, n, d, *settings]
    arguments += [pattern.direct == "all", pattern.recurrent]
    parts = min(torch.get_num_threads(), batch * heads)
    edges = [batch * heads * part // parts for part in range(parts + 1)] if parts else []
    if parts == 1:
        kernel(*arguments, *edges)
        return
    pool = _pool(os.getpid(), torch.get_num_threads())
    for job in [pool.submit(kernel, *arguments, first, last) for first, last in pairwise(edges)]:
        job.result()


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork, so a child makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"resolvent-{process}")
