"""What a decoder keeps of the tokens it has seen, and the verbs that every cache knows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from resolvent.ops.cache_file import write
from resolvent.ops.sequences import integers
from resolvent.patterns.strides import Integers

Layout = dict[str, Any]  # what JSON holds
MEMORY = "memory"  # the part of a `State` that sums over all tokens: never in half precision


@dataclass(frozen=True)
class Change:
    """What a verb does to every tensor: other rows, another device or dtype. The result has memory of its own."""

    rows: list[int] | None = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def tensor(self, name: str, part: Tensor) -> Tensor:
        dtype = self.dtype if self.dtype and part.is_floating_point() and name != "logs" else part.dtype
        if name == MEMORY:
            dtype = torch.promote_types(dtype, torch.float32)
        if self.rows is not None:
            part = part.index_select(0, torch.tensor(self.rows, dtype=torch.int64, device=part.device))
        return part.to(self.device or part.device, dtype, copy=self.rows is None)

    def numbers(self, array: Integers) -> Integers:
        return array.copy() if self.rows is None else array[np.array(self.rows, dtype=np.int64)]


class Cache(ABC):
    """Tensors with the batch first, and how many tokens each row has seen. Verbs act on all of it."""

    parts: dict[str, Tensor]
    positions: Integers
    batch: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; snapshots come on top."""
        return sum(part.nbytes for part in self.parts.values())

    def clone(self) -> Self:
        """A cache of its own, from which another continuation can go on."""
        return self._changed(Change())

    def select(self, indices: Sequence[int] | Tensor) -> Self:
        """These rows, in this order; repeats are allowed."""
        rows = integers("indices", indices)
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
        rows = integers("indices", indices)
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
        a newer token; else this is refused. Snapshots of what is undone are dropped.
        """
        same = isinstance(position, int | np.integer)
        targets = [int(position)] * self.batch if same else integers("positions", position)  # type: ignore[arg-type]
        if len(targets) != self.batch:
            raise ValueError(f"expected a position, or one for each of the {self.batch} rows, got {len(targets)}.")
        self.check_rewind(targets)  # all of it, before anything is changed
        self._rewind(targets)

    def save(self, path: str | PathLike[str]) -> None:
        """One safetensors file, complete or not there at all. Snapshots are not saved."""
        write(path, self.parts, self.layout())

    @abstractmethod
    def make_room(self, end: int) -> None:
        """Room for so many tokens, or a clear refusal, before anything is written."""

    @abstractmethod
    def snapshot(self) -> None:
        """Remember the present state, to `rewind` to. It costs `nbytes`, or nothing where nothing is ever dropped."""

    @abstractmethod
    def drop_snapshots(self) -> None:
        """Forget all snapshots, and free their memory."""

    @abstractmethod
    def check_rewind(self, targets: list[int]) -> None:
        """Refuse, with the reason, what `rewind` cannot do."""

    @abstractmethod
    def layout(self) -> Layout:
        """All but the tensors, as JSON can hold it."""

    @abstractmethod
    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these for `parts`: names, shapes and dtypes are the same."""

    @abstractmethod
    def _changed(self, change: Change) -> Self: ...

    @abstractmethod
    def _rewind(self, targets: list[int]) -> None: ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state to come back to."""

    positions: Integers
    parts: dict[str, Tensor]

    def changed(self, change: Change) -> Snapshot:
        return Snapshot(
            change.numbers(self.positions), {name: change.tensor(name, t) for name, t in self.parts.items()}
        )


class Single(Cache):
    """One cache, as against `Caches`: tensors and snapshots of them."""

    snapshots: list[Snapshot]

    def snapshot(self) -> None:
        if self._forgets():
            return
        self.snapshots = [s for s in self.snapshots if (s.positions != self.positions).any()]  # one for each place
        self.snapshots.append(Snapshot(self.positions, self.parts).changed(Change()))

    def drop_snapshots(self) -> None:
        self.snapshots = []

    def check_rewind(self, targets: list[int]) -> None:
        for row, (target, now) in enumerate(zip(targets, self.positions.tolist(), strict=True)):
            if not 0 <= target <= now:
                raise ValueError(f"expected a position from 0 to {now} to go back to, got {target} for row {row}.")
            if target != now and not self._forgets(target) and self._remembered(row, target) is None:
                taken = sorted({int(s.positions[row]) for s in self.snapshots})
                raise ValueError(
                    f"row {row} cannot go from position {now} back to {target}: {self._why_not(row, target)} "
                    f"Call snapshot() there before going on, or keep a clone(); "
                    f"this row has snapshots at {', '.join(map(str, taken)) if taken else 'no position'}."
                )

    def _rewind(self, targets: list[int]) -> None:
        back = [row for row, now in enumerate(self.positions.tolist()) if targets[row] != now]
        for row in back:
            found = None if self._forgets(targets[row]) else self._remembered(row, targets[row])
            if found is not None:
                self.parts = {name: _restored(part, found.parts[name], row) for name, part in self.parts.items()}
        self.positions[:] = targets
        self.snapshots = [s for s in self.snapshots if (s.positions <= self.positions).all()]
        self._recount(back)

    def _remembered(self, row: int, target: int) -> Snapshot | None:
        return next((s for s in reversed(self.snapshots) if s.positions[row] == target), None)

    def _changed(self, change: Change) -> Self:
        other = copy.copy(self)
        other.parts = {name: change.tensor(name, part) for name, part in self.parts.items()}
        other.positions = change.numbers(self.positions)
        other.batch = len(other.positions)
        other.snapshots = [s.changed(change) for s in self.snapshots]
        other._settle(change)
        return other

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        self.parts = dict(tensors)

    @abstractmethod
    def _forgets(self, target: int | None = None) -> bool:
        """Whether to go back to this position, or to any, it is enough to forget what came later."""

    @abstractmethod
    def _why_not(self, row: int, target: int) -> str:
        """A sentence: why forgetting is not enough."""

    @abstractmethod
    def _settle(self, change: Change) -> None:
        """Bring what else a cache knows in line with a change."""

    @abstractmethod
    def _recount(self, rows: list[int]) -> None:
        """Bring what else a cache knows in line with the positions of these rows."""


@final
class State(Single):
    """The state of a first-order scan, of fixed size: named tensors with the batch first.

    Whoever goes on replaces `parts` and adds to `positions`.
    """

    def __init__(self, parts: dict[str, Tensor], positions: Sequence[int] | None = None) -> None:
        sizes = {name: part.shape[0] if part.ndim else None for name, part in parts.items()}
        if not parts or None in sizes.values() or len(set(sizes.values())) > 1:
            raise ValueError(f"expected tensors with the same batch first, got {_shapes(parts)}.")
        check_names(parts)
        self.parts, self.snapshots, self.batch = dict(parts), [], int(next(iter(parts.values())).shape[0])
        self.positions = np.zeros(self.batch, dtype=np.int64)
        if positions is not None:
            self.positions[:] = checked_positions(positions, self.batch)

    def make_room(self, end: int) -> None:
        """A state has room for any number."""

    def layout(self) -> Layout:
        parts = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in self.parts.items()}
        return {"kind": "state", "parts": parts, "positions": self.positions.tolist()}

    @classmethod
    def hollow(cls, layout: Layout) -> State:
        """From its layout, on the device "meta"."""
        parts = {
            name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            for name, (shape, dtype) in layout["parts"].items()
        }
        return cls(parts, layout["positions"])

    def __repr__(self) -> str:
        return f"State({_shapes(self.parts)}, positions={self.positions.tolist()})"

    def _forgets(self, target: int | None = None) -> bool:  # noqa: ARG002
        return False

    def _why_not(self, row: int, target: int) -> str:  # noqa: ARG002
        return "a state is one sum over all tokens, from which the later ones cannot be taken out."

    def _settle(self, change: Change) -> None:
        pass

    def _recount(self, rows: list[int]) -> None:
        pass


def _restored(part: Tensor, saved: Tensor, row: int) -> Tensor:
    """With a row as it was saved; the cache may have grown since. What a gradient may need is not written over."""
    part = part.clone() if part.requires_grad else part
    if saved.shape[1:] == part.shape[1:]:
        part[row] = saved[row]
    else:
        part[row, :, : saved.shape[2]] = saved[row]
    return part


def checked_positions(positions: Sequence[int] | Tensor, batch: int, most: int | None = None) -> list[int]:
    listed = integers("positions", positions)
    if len(listed) != batch or any(p < 0 or (most is not None and p > most) for p in listed):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(f"expected a position for each of the {batch} rows, at least 0{limit}, got {listed}.")
    return listed


def check_names(named: Mapping[str, object]) -> None:
    for name in named:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"expected names without '/', which parts the names in a file, got {name!r}.")


def _shapes(parts: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(part.shape) for name, part in parts.items()}
