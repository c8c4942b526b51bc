"""The state of a first-order scan as a cache: of fixed size, whatever the number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from resolvent.fields import as_integers, as_list, as_mapping, as_text, check_names
from resolvent.ops.cache.base import Change, Layout, TensorCache, check_tensor_names, checked_positions, shapes
from resolvent.patterns.strides import Integers
from resolvent.tensor_files import StoredTensor, differences


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

    def layout(self) -> Layout:
        tensors = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in self.tensors.items()}
        return {"kind": "state", "tensors": tensors, "positions": self.positions.tolist()}

    @classmethod
    def from_layout(cls, layout: Layout, stored: Mapping[str, StoredTensor]) -> ScanState:
        """From its layout, on the device "meta"; what it claims is compared with the tensors that are stored."""
        check_names(layout, ("kind", "tensors", "positions"), "the layout of a state", optional=())
        expected = {}
        for name, value in as_mapping(layout["tensors"], "tensors").items():
            shape, dtype = [*as_list(value, name), None, None][:2]
            expected[name] = StoredTensor(as_text(dtype, "a dtype"), tuple(as_integers(shape, "a shape")))
        if wrong := differences(expected, stored):
            raise ValueError(f"the file does not hold what it says. {wrong}.")
        tensors = {
            name: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for name, t in expected.items()
        }
        positions = as_integers(layout["positions"], "positions")
        if any(t.shape[:1] != (len(positions),) for t in expected.values()):
            raise ValueError(f"expected a position for each row, got {len(positions):,}.")
        return cls(tensors, positions)

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
