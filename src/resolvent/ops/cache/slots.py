"""The cache of one mixer: the rows that later tokens may still read, each in the slot its pattern assigns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import shortened
from resolvent.ops.cache.base import CAPACITY, POSITIONS, Change, TensorCache, checked_positions
from resolvent.ops.cpu.memory import zeros
from resolvent.patterns import Normalize, PatternLike, Stage, as_pattern
from resolvent.patterns.checks import LARGEST_POSITION, require_length
from resolvent.patterns.strides import Integers

_ZERO = np.zeros(1, dtype=np.int64)
_FIRST_CAPACITY = 64


@final
class DecodeCache(TensorCache):
    """Slots for one layer, empty at first. `nbytes` is known before the first token.

    Args:
        pattern: who reads whom; with `tied`, the operator's own version (A on the diagonal). Not a pair "A/B", which
            has slots for A and for B: `decode_cache` makes both.
        batch, heads, dim, key_dim: B, H, D and D' of the inputs.
        max_tokens: how many tokens it is made for, such as 4096 or "128k"; its size is then final. Without, it grows
            as it must: by doubling for patterns that read arbitrarily far back, by a slot now and then for
            cache-efficient ones. Of a pattern that ends it never asks for more than there are.
        normalize: as in `mix`.
        kv_heads: heads of values and keys, if several heads share them [default: heads].

    >>> DecodeCache("exponential+cache", batch=1, heads=4, dim=16, key_dim=16, max_tokens=100_000).nbytes
    17408
    """

    def __init__(
        self,
        pattern: PatternLike,
        batch: int,
        heads: int,
        dim: int,
        key_dim: int,
        *,
        max_tokens: int | str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        normalize: Normalize = "gate",
        kv_heads: int | None = None,
    ) -> None:
        normalize = _normalize(normalize)
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"expected heads to be a multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}.")
        self.pattern, self.normalize = _one_stage(pattern), normalize
        self.batch, self.heads, self.kv_heads, self.dim, self.key_dim = batch, heads, kv_heads, dim, key_dim
        self.dtype, self.device = dtype, device
        self.max_tokens = None if max_tokens is None else require_length(max_tokens)
        if self.max_tokens is not None:
            self._check_limit(self.max_tokens)
        self.capacity = self.max_tokens or min(_FIRST_CAPACITY, self._limit)
        slots = self.pattern.slots(self.capacity)
        self.tensors = {name: self._zeros(name, slots) for name in self.pattern.needs(normalize).cached}
        self.positions = np.zeros(batch, dtype=np.int64)
        self.expiry = np.full((batch, slots), -1, dtype=np.int64)  # the last token that reads what a slot holds
        self.snapshots = []

    @property
    def content(self) -> str:
        made_for = "" if self.max_tokens is None else f" for {self.max_tokens:,} tokens"
        return f"{self.pattern}, {self.slots:,} slots{made_for}"

    def _zeros(self, name: str, slots: int) -> Tensor:
        heads, width = _tensor_sizes(name, self.heads, self.kv_heads, self.dim, self.key_dim)
        dtype = torch.float64 if name == "logs" else self.dtype  # logarithms grow with the sequence
        return zeros((self.batch, heads, slots, width), dtype, self.device)

    @property
    def slots(self) -> int:
        return int(self.expiry.shape[1])

    @property
    def signature(self) -> object:
        sizes = f"{self.heads} heads of {self.dim}, {self.kv_heads} of keys of {self.key_dim}"
        return f"{self.pattern} ({sizes}{', joint' if self.normalize == 'joint' else ''})"

    @property
    def _limit(self) -> int:
        return LARGEST_POSITION if self.pattern.limit is None else self.pattern.limit

    def _check_limit(self, tokens: int) -> None:
        if tokens > self._limit:
            raise ValueError(
                f"{self.pattern} is defined for {self._limit:,} tokens: expected at most as many, got {tokens:,}."
            )

    def reserve(self, tokens: int) -> None:
        self.leave_inference_mode()
        if self.max_tokens is not None:
            if tokens > self.capacity:
                raise ValueError(
                    f"this cache was made for {self.capacity:,} tokens, got {tokens:,}: "
                    "make it with a larger `max_tokens`, or without, so that it grows."
                )
            return
        self._check_limit(tokens)
        if tokens < self.capacity or self.capacity == self._limit:  # beyond the limit, nothing is read
            return
        self.capacity = min(max(2 * self.capacity, tokens + 1), self._limit)
        more = self.pattern.slots(self.capacity) - self.slots
        self.tensors = {name: _longer(tensor, more) for name, tensor in self.tensors.items()}
        self.expiry = np.pad(self.expiry, ((0, 0), (0, more)), constant_values=-1)

    def reads(self, group: slice) -> tuple[Integers, Integers]:
        """The slots that the next token of each sequence reads, one sequence after another, and where each begins.

        Where all stand at one position, they are listed once.
        """
        positions = self._distinct(group)
        if self.pattern.contiguous_columns:  # whatever is still alive
            if len(positions) == 1:
                slots = np.flatnonzero(self.expiry[group.start] >= positions[0])
                return slots, np.array([0, len(slots)])
            alive = self.expiry[group] >= self.positions[group, None]
            return np.ascontiguousarray(np.nonzero(alive)[1]), np.concatenate([_ZERO, alive.sum(1).cumsum()])
        listed = [_slots_read(self.pattern, position) for position in positions]
        if len(listed) == 1:
            return listed[0], np.array([0, len(listed[0])])
        return np.concatenate(listed), np.array([0, *map(len, listed)]).cumsum()

    def _distinct(self, group: slice) -> list[int]:
        """The position of each sequence, or one if it is that of all."""
        positions: list[int] = self.positions[group].tolist()
        return positions[:1] if len(positions) == 1 or len(set(positions)) == 1 else positions

    def take(self, group: slice) -> Integers:
        """Count one token of each sequence as seen: the slot that it takes, -1 if none; listed as `reads` are."""
        distinct = self._distinct(group)
        slots = [self.pattern.slot(position) for position in distinct]
        for b, (position, slot) in enumerate(zip(distinct, slots, strict=True)):
            if 0 <= slot < self.slots:  # the last token of a full cache is read by none
                rows = group if len(distinct) == 1 else group.start + b
                self.expiry[rows, slot] = position + min(self.pattern.life(position), LARGEST_POSITION)
            else:
                slots[b] = -1
        self.positions[group] += 1
        return np.array(slots)

    def follow(self, leader: DecodeCache, slots: Integers) -> None:
        """What `take` does, where a cache of the same pattern at the same positions has just taken these slots."""
        self.positions += 1
        for b, slot in enumerate(slots.tolist()):
            if slot >= 0:
                rows = b if len(slots) > 1 else slice(None)
                self.expiry[rows, slot] = leader.expiry[rows, slot]

    def advance(self, group: slice, count: int) -> tuple[Integers, Integers]:
        """Count the next tokens of sequences at one position as seen.

        Returns which slots they take that stay alive, and which of them these are.
        """
        position, pattern = int(self.positions[group.start]), self.pattern
        self.positions[group] = position + count
        kept = pattern.held(position + count)
        kept = kept[kept >= position]
        slots = pattern.slots_of(kept)
        fits = (slots >= 0) & (slots < self.slots)
        self.expiry[group, slots[fits]] = pattern.last_readers(kept[fits])
        return slots[fits], kept[fits] - position

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), CAPACITY: torch.tensor(self.capacity)}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        super().check_state(state)
        capacity = int(state[CAPACITY])
        if self.max_tokens not in (None, capacity):
            raise ValueError(f"expected the state of a cache for {self.max_tokens:,} tokens, got one for {capacity:,}.")
        if capacity < 1:
            raise ValueError(f"expected a capacity of at least one token, got {capacity}.")
        self._check_limit(capacity)
        checked_positions(state[POSITIONS], self.batch, capacity)

    def _shape(self, name: str, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        return (*self.tensors[name].shape[:2], self._slots_in(state), self.tensors[name].shape[3])

    def _slots_in(self, state: Mapping[str, Tensor]) -> int:
        """A cache that grows may have had another capacity; slots keep their numbers."""
        given = state.get(CAPACITY)
        capacity = int(given) if given is not None and given.numel() == 1 else 0
        return self.pattern.slots(capacity) if 1 <= capacity <= self._limit else self.slots

    def _load(self, state: Mapping[str, Tensor]) -> None:
        self.capacity = int(state[CAPACITY])
        self.expiry = np.full((self.batch, self._slots_in(state)), -1, dtype=np.int64)
        super()._load(state)

    def _rewinds_freely(self, target: int | None = None) -> bool:
        """Where no slot is ever given to a newer token; to the very beginning, always."""
        return target == 0 or not self.pattern.reuses_slots

    def _why_not_freely(self, row: int, target: int) -> str:
        kept = self.pattern.held(target)
        slots = self.pattern.slots_of(kept)
        lost = sorted(slots[self.expiry[row, slots] != self.pattern.last_readers(kept)].tolist())
        if not lost:
            return f"{self.pattern} gives slots to newer tokens, and which are left depends on how they came."
        shown = ", ".join(map(str, lost[:8])) + (", …" if len(lost) > 8 else "")
        return (
            f"{self.pattern} gives slots to newer tokens, and slot{'s' * (len(lost) > 1)} {shown} no longer "
            f"hold{'s' * (len(lost) == 1)} what token {target} reads."
        )

    def _follow_change(self, change: Change) -> None:
        self.expiry = change.apply_to_rows(self.expiry)
        self.device, self.dtype = change.device or self.device, change.dtype or self.dtype

    def _follow_positions(self, rows: list[int]) -> None:
        for row in rows:
            kept = self.pattern.held(int(self.positions[row]))
            slots = self.pattern.slots_of(kept)
            fits = (slots >= 0) & (slots < self.slots)
            self.expiry[row] = -1
            self.expiry[row, slots[fits]] = self.pattern.last_readers(kept[fits])


@lru_cache(maxsize=64)
def _slots_read(pattern: Stage, position: int) -> Integers:
    """The same for all layers of a model; none writes to it. (Read-only arrays are another type to kernels.)"""
    return pattern.slots_of(pattern.sources(position))


def _one_stage(pattern: PatternLike) -> Stage:
    chosen = as_pattern(pattern)
    if len(chosen.stages) > 1:
        raise ValueError(
            f"{chosen} has slots for A and others for B: expected a pattern in which both read the same positions. "
            f"Use resolvent.decode_cache('{chosen}', …), which makes a cache for any pattern."
        )
    return chosen.stages[0]


def _normalize(value: object) -> Normalize:
    if value != "gate" and value != "joint":
        raise ValueError(f"expected normalize 'gate' or 'joint', got {shortened(value)}.")
    return "gate" if value == "gate" else "joint"


def _tensor_sizes(name: str, heads: int, kv_heads: int, dim: int, key_dim: int) -> tuple[int, int]:
    """Heads and width of a tensor: what is read may be shared by heads, what is fed back is each head's own."""
    width = {"keys_a": key_dim, "keys_b": key_dim, "logs": 1}.get(name, dim)
    return heads if name in ("outputs", "logs") else kv_heads, width


def _longer(tensor: Tensor, more: int) -> Tensor:
    """More slots, empty, after those there are; a gradient finds its way through."""
    if tensor.requires_grad:
        return torch.nn.functional.pad(tensor, (0, 0, 0, more))
    longer = zeros((*tensor.shape[:2], tensor.shape[2] + more, tensor.shape[3]), tensor.dtype, tensor.device)
    longer[:, :, : tensor.shape[2]] = tensor
    return longer
