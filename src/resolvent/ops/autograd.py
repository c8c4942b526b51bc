"""What autograd functions share: types that torch leaves open, and how they are mapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

Forward = TypeVar("Forward", bound=Callable[..., object])


class Context(Protocol):
    """What `setup_context` and `backward` share: tensors that are saved, and attributes of any name."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None: ...


class VmapInfo(NamedTuple):
    """What `vmap` is told: how long the mapped dimension is."""

    batch_size: int
    randomness: str


def signed(forward: Forward) -> Forward:
    """A function's `forward` that knows its signature, which torch otherwise derives from the source at each call.

    That took a tenth of the time before a kernel starts (docs/log.md).
    """
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return forward


class BatchedFunction(torch.autograd.Function):
    """An autograd function of independent entries along the first dimension of every tensor: `vmap` adds to them."""

    @classmethod
    def vmap(cls, info: VmapInfo, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        sizes, joined = None, []
        for argument, dim in zip(arguments, in_dims, strict=True):
            if not isinstance(argument, Tensor):
                joined.append(argument)
                continue
            mapped = argument.expand(info.batch_size, *argument.shape) if dim is None else argument.movedim(dim, 0)
            sizes = sizes or mapped.shape[:2]
            joined.append(mapped.flatten(0, 1))
        outputs = cls.apply(*joined)  # type: ignore[no-untyped-call]
        if isinstance(outputs, Tensor):
            return outputs.unflatten(0, sizes), 0
        return tuple(t.unflatten(0, sizes) for t in outputs), (0,) * len(outputs)
