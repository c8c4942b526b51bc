"""What a decoder keeps of the tokens it has seen, and what every cache can do."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from resolvent.ops.sequences import checked_integers
from resolvent.patterns.strides import Integers

POSITIONS, CAPACITY = "positions", "capacity"  # of a `state_dict`, beside the tensors
MEMORY = "memory"  # the tensor of a `ScanState` that sums over all tokens: never in half precision


@dataclass(frozen=True)
class Change:
    """What a method does to every tensor: other rows, another device or dtype. The result has memory of its own."""

    rows: list[int] | None = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def apply(self, name: str, tensor: Tensor) -> Tensor:
        dtype = self.dtype if self.dtype and tensor.is_floating_point() and name != "logs" else tensor.dtype
        if name == MEMORY:
            dtype = torch.promote_types(dtype, torch.float32)
        if self.rows is not None:
            tensor = tensor.index_select(0, torch.tensor(self.rows, dtype=torch.int64, device=tensor.device))
        return tensor.to(self.device or tensor.device, dtype, copy=self.rows is None)

    def apply_to_rows(self, array: Integers) -> Integers:
        return array.copy() if self.rows is None else array[np.array(self.rows, dtype=np.int64)]


class Cache(ABC):
    """Tensors with the batch first, and how many tokens each row has seen."""

    tensors: dict[str, Tensor]
    positions: Integers
    batch: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; snapshots come on top."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.content}, {self._size})"

    @property
    def _size(self) -> str:
        seen = ", ".join(f"{count:,}" for count in np.unique(self.positions[:8])) + (", …" if self.batch > 8 else "")
        return f"batch {self.batch}, {self.nbytes:,} bytes, {seen or 0} tokens seen"

    @property
    @abstractmethod
    def content(self) -> str:
        """What it keeps, in a few words."""

    def clone(self) -> Self:
        """A cache of its own, from which another continuation can go on."""
        return self._changed(Change())

    def select(self, indices: Sequence[int] | Tensor) -> Self:
        """These rows, in this order; repeats are allowed."""
        rows = checked_integers("indices", indices)
        if any(not 0 <= row < self.batch for row in rows):
            raise ValueError(f"expected rows from 0 to {self.batch - 1}, got {rows}.")
        return self._changed(Change(rows=rows))

    def repeat(self, times: int) -> Self:
        """Every row so many times, next to each other."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ValueError(f"expected to repeat each row at least once, got times={times!r}.")
        return self.select([row for row in range(self.batch) for _ in range(times)])

    def reorder(self, indices: Sequence[int] | Tensor) -> Self:
        """`select` that keeps the size of the batch: which row each beam goes on from."""
        rows = checked_integers("indices", indices)
        if len(rows) != self.batch:
            raise ValueError(f"expected one index for each of the {self.batch} rows, got {len(rows)}: use select().")
        return self.select(rows)

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """A copy elsewhere, or in another floating dtype; logarithms stay in float64, states in float32 or better."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"expected a floating dtype, got {dtype}.")
        return self._changed(Change(device=device, dtype=dtype))

    def rewind(self, position: int | Sequence[int]) -> None:
        """Go back, in place, to where this many tokens were seen, in all rows or in each.

        Rows go back to a snapshot taken there, or simply forget what came later if the pattern never gives a slot to
        a newer token; otherwise this raises an error. Snapshots of what is undone are dropped.
        """
        same = isinstance(position, int | np.integer)
        targets = [int(position)] * self.batch if same else checked_integers("positions", position)  # type: ignore[arg-type]
        if len(targets) != self.batch:
            raise ValueError(f"expected a position, or one for each of the {self.batch} rows, got {len(targets)}.")
        self.check_rewind(targets)  # all of it, before anything is changed
        self._rewind(targets)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the state that `state_dict` gave, of a cache made of the same; snapshots are dropped.

        Tensors are copied, to this cache's device and dtype. A state of another cache raises an error, and changes
        nothing.
        """
        self.check_state(state)
        self._load(state)

    @property
    @abstractmethod
    def signature(self) -> object:
        """What it is made of, but for the batch, device and dtype: equal for caches of the same layer or model."""

    @abstractmethod
    def reserve(self, tokens: int) -> None:
        """Grow to hold this many tokens of each row, or raise an error, before anything is written."""

    @abstractmethod
    def snapshot(self) -> None:
        """Remember the present state, to `rewind` to. It costs `nbytes`, or nothing where nothing is ever dropped."""

    @abstractmethod
    def drop_snapshots(self) -> None:
        """Forget all snapshots, and free their memory."""

    @abstractmethod
    def check_rewind(self, targets: list[int]) -> None:
        """Raise an error, with the reason, where `rewind` cannot do this."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Its tensors, and in others how many tokens were seen, for `load_state_dict`: what `torch.save` or safetensors
        can write. Like a module's, they are those of the cache: clone them if it goes on. Snapshots are not among them.
        """

    @abstractmethod
    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise an error, with the reason, where `load_state_dict` cannot do this."""

    @abstractmethod
    def _changed(self, change: Change) -> Self: ...

    @abstractmethod
    def _rewind(self, targets: list[int]) -> None: ...

    @abstractmethod
    def _load(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state to come back to."""

    positions: Integers
    tensors: dict[str, Tensor]

    def changed(self, change: Change) -> Snapshot:
        return Snapshot(
            change.apply_to_rows(self.positions), {name: change.apply(name, t) for name, t in self.tensors.items()}
        )


class TensorCache(Cache):
    """One cache, as against `Caches`: tensors and snapshots of them."""

    snapshots: list[Snapshot]

    def snapshot(self) -> None:
        if self._rewinds_freely():
            return
        self.snapshots = [s for s in self.snapshots if (s.positions != self.positions).any()]  # one for each place
        self.snapshots.append(Snapshot(self.positions, self.tensors).changed(Change()))

    def drop_snapshots(self) -> None:
        self.snapshots = []

    def leave_inference_mode(self) -> None:
        """What was made under `torch.inference_mode()` can be neither written nor saved for gradients outside of it."""
        if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in self.tensors.values()):
            self.tensors = {name: t.clone() for name, t in self.tensors.items()}

    def check_rewind(self, targets: list[int]) -> None:
        for row, (target, now) in enumerate(zip(targets, self.positions.tolist(), strict=True)):
            if not 0 <= target <= now:
                raise ValueError(f"expected a position from 0 to {now} to go back to, got {target} for row {row}.")
            if target != now and not self._rewinds_freely(target) and self._snapshot_at(row, target) is None:
                taken = sorted({int(s.positions[row]) for s in self.snapshots})
                raise ValueError(
                    f"row {row} cannot go from position {now} back to {target}: {self._why_not_freely(row, target)} "
                    f"Call snapshot() there before going on, or keep a clone(); "
                    f"this row has snapshots at {', '.join(map(str, taken)) if taken else 'no position'}."
                )

    def _rewind(self, targets: list[int]) -> None:
        self.leave_inference_mode()
        back = [row for row, now in enumerate(self.positions.tolist()) if targets[row] != now]
        for row in back:
            snapshot = None if self._rewinds_freely(targets[row]) else self._snapshot_at(row, targets[row])
            if snapshot is not None:
                self.tensors = {
                    name: _restored(tensor, snapshot.tensors[name], row) for name, tensor in self.tensors.items()
                }
        self.positions[:] = targets
        self.snapshots = [s for s in self.snapshots if (s.positions <= self.positions).all()]
        self._follow_positions(back)

    def _snapshot_at(self, row: int, target: int) -> Snapshot | None:
        return next((s for s in reversed(self.snapshots) if s.positions[row] == target), None)

    def _changed(self, change: Change) -> Self:
        other = copy.copy(self)
        other.tensors = {name: change.apply(name, tensor) for name, tensor in self.tensors.items()}
        other.positions = change.apply_to_rows(self.positions)
        other.batch = len(other.positions)
        other.snapshots = [s.changed(change) for s in self.snapshots]
        other._follow_change(change)
        return other

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.tensors, POSITIONS: torch.tensor(self.positions)}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        expected = {name: self._shape(name, state) for name in self.tensors}
        expected |= {name: tuple(t.shape) for name, t in self.state_dict().items() if name not in self.tensors}
        if shapes(state) != expected:
            raise ValueError(f"expected a state of tensors of shapes {expected}, got {shapes(state)}.")
        checked_positions(state[POSITIONS], self.batch)

    def _shape(self, name: str, state: Mapping[str, Tensor]) -> tuple[int, ...]:  # noqa: ARG002
        """That a tensor has in this state of a cache like this one."""
        return tuple(self.tensors[name].shape)

    def _load(self, state: Mapping[str, Tensor]) -> None:
        self.tensors = {name: state[name].detach().to(t.device, t.dtype, copy=True) for name, t in self.tensors.items()}
        self.positions[:] = state[POSITIONS].tolist()
        self.snapshots = []
        self._follow_positions(list(range(self.batch)))

    @abstractmethod
    def _rewinds_freely(self, target: int | None = None) -> bool:
        """Whether to go back to this position, or to any, it is enough to forget what came later."""

    @abstractmethod
    def _why_not_freely(self, row: int, target: int) -> str:
        """A sentence: why forgetting is not enough."""

    @abstractmethod
    def _follow_change(self, change: Change) -> None:
        """Bring what else a cache knows in line with a change."""

    @abstractmethod
    def _follow_positions(self, rows: list[int]) -> None:
        """Bring what else a cache knows in line with the positions of these rows."""


def _restored(tensor: Tensor, saved: Tensor, row: int) -> Tensor:
    """With a row as it was saved; the cache may have grown since. What a gradient may need is not written over."""
    tensor = tensor.clone() if tensor.requires_grad else tensor
    if saved.shape[1:] == tensor.shape[1:]:
        tensor[row] = saved[row]
    else:
        tensor[row, :, : saved.shape[2]] = saved[row]
    return tensor


def checked_positions(positions: Sequence[int] | Tensor, batch: int, most: int | None = None) -> list[int]:
    listed = checked_integers("positions", positions)
    if len(listed) != batch or any(p < 0 or (most is not None and p > most) for p in listed):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(f"expected a position for each of the {batch} rows, at least 0{limit}, got {listed}.")
    return listed


def check_tensor_names(named: Mapping[str, object]) -> None:
    for name in named:
        if not isinstance(name, str) or not name or "/" in name or name in (POSITIONS, CAPACITY):
            raise ValueError(
                f"expected names without '/', other than {POSITIONS} and {CAPACITY}, as the names in a state_dict, "
                f"got {name!r}."
            )


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
