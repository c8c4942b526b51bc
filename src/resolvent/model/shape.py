"""Models without numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions that initialize parameters, and for whose results on `meta` torch first imports its compiler, for two
# seconds. Others run as they are.
_DRAWN = {"normal_", "trunc_normal_"}
_COMPUTED = {
    *("exp", "expm1", "log", "log1p", "logit", "softplus", "neg", "__neg__", "clamp", "pow", "__pow__", "__rpow__"),
    *("add", "__add__", "__radd__", "sub", "rsub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__"),
    *("div", "__truediv__", "__rtruediv__"),
}


@contextmanager
def without_numbers() -> Iterator[None]:
    """Tensors that are made inside have a shape and nothing else, so that any size takes no memory."""
    with torch.device("meta"), _ShapesAlone():
        yield


class _ShapesAlone(TorchFunctionMode):
    """Drawing numbers does nothing, arithmetic only broadcasts shapes."""

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:  # fmt: skip
        named, name = kwargs or {}, getattr(func, "__name__", "")
        tensors = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        if name in _DRAWN:
            return tensors[0]
        if name in _COMPUTED:
            return tensors[0].new_empty(torch.broadcast_shapes(*(each.shape for each in tensors)))
        return func(*args, **named)
