"""The types of torch's autograd functions, which torch leaves open."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

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


def map_in_front(info: VmapInfo, dims: tuple[int | None, ...], tensors: list[Tensor]) -> list[Tensor]:
    """The mapped dimension first, everywhere."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for dim, t in zip(dims, tensors, strict=True)
    ]
