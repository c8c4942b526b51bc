"""The state of a first-order scan as a cache: of fixed size, whatever the number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from torch import Tensor

from resolvent.ops.cache.base import Change, TensorCache, check_tensor_names, checked_positions, shapes
from resolvent.patterns.strides import Integers


@final
class ScanState(TensorCache):
    """The state of a first-order scan, of fixed size: named tensors with the batch first.

    `advance` replaces the tensors and counts the tokens.
    """

    def __init__(self, tensors: dict[str, Tensor], positions: Sequence[int] | None = None) -> None:
        sizes = {name: tensor.shape[0] if tensor.ndim else None for name, tensor in tensors.items()}
        if not tensors or None in sizes.values() or len(set(sizes.values())) > 1:
            raise ValueError(f"expected tensors with the same batch first, got {shapes(tensors)}.")
        check_tensor_names(tensors)
        self.tensors, self.snapshots, self.batch = dict(tensors), [], int(next(iter(tensors.values())).shape[0])
        self.positions = np.zeros(self.batch, dtype=np.int64)
        if positions is not None:
            self.positions[:] = checked_positions(positions, self.batch)

    @property
    def signature(self) -> object:
        return {name: tuple(t.shape[1:]) for name, t in self.tensors.items()}

    def reserve(self, tokens: int) -> None:  # noqa: ARG002
        """A state holds any number of tokens."""
        self.leave_inference_mode()

    def advance(self, counts: int | Integers, **tensors: Tensor) -> None:
        """Take these tensors for the state after so many more tokens of each row."""
        self.tensors |= {name: t if t.requires_grad else t.detach() for name, t in tensors.items()}
        self.positions += counts

    @property
    def content(self) -> str:
        return " and ".join(self.tensors) + ", whatever the tokens"

    def _rewinds_freely(self, target: int | None = None) -> bool:  # noqa: ARG002
        return False

    def _why_not_freely(self, row: int, target: int) -> str:  # noqa: ARG002
        return "a state is one sum over all tokens, from which the later ones cannot be taken out."

    def _follow_change(self, change: Change) -> None:
        pass

    def _follow_positions(self, rows: list[int]) -> None:
        pass
