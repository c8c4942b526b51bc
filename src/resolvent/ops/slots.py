"""The cache of one mixer: the rows that later tokens may still read, each in the slot its pattern assigns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis.cost import reads_several
from resolvent.ops.cache import Change, Layout, Single, Snapshot, checked_positions
from resolvent.ops.memory import zeros
from resolvent.ops.rows import held
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.strides import Contiguous, Integers, Rule
from resolvent.patterns.translation_invariant import TranslationInvariant

Normalise = Literal["gate", "whole"]

_FOR_EVER = 1 << 62
_NONE = np.empty(0, dtype=np.int64)


@final
@dataclass(eq=False)
class DecodeCache(Single):
    """Slots for one layer, empty at first. `nbytes` is known before the first token.

    With `tokens` given, the cache is made for so many tokens and never changes its size. Without, it grows as it must:
    by doubling for patterns that read arbitrarily far back, by a slot now and then for cache-efficient ones.
    With `kv_heads` fewer than `heads`, values and keys are kept once for each group of heads that share them.
    """

    pattern: Pattern
    batch: int
    heads: int
    dim: int
    key_dim: int
    tokens: int | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    normalise: Normalise = "gate"
    kv_heads: int | None = None
    parts: dict[str, Tensor] = field(init=False, repr=False)
    positions: Integers = field(init=False)
    expiry: Integers = field(init=False, repr=False)
    room: int = field(init=False, repr=False)
    snapshots: list[Snapshot] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.pattern = pattern(self.pattern)
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"expected a cache for at least one token, got tokens={self.tokens}.")
        if self.normalise not in ("gate", "whole"):
            raise ValueError(f"expected normalise 'gate' or 'whole', got {self.normalise!r}.")
        if self.kv_heads is None:
            self.kv_heads = self.heads
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(
                f"expected heads to be a multiple of kv_heads, got heads={self.heads}, kv_heads={self.kv_heads}."
            )
        self.room = 64 if self.tokens is None else self.tokens
        slots = self.pattern.slots(self.room)
        self.parts = {
            name: zeros(
                (self.batch, self.heads if name in ("outputs", "logs") else self.kv_heads, slots, width),
                torch.float64 if name == "logs" else self.dtype,
                self.device,
            )
            for name, width in self._widths().items()
        }
        self.positions = np.zeros(self.batch, dtype=np.int64)
        self.expiry = np.full((self.batch, slots), -1, dtype=np.int64)
        self.snapshots = []

    def _widths(self) -> dict[str, int]:
        """The tensors that are kept and the length of their rows; a softmax over one entry needs no keys."""
        direct, recurrent = self.pattern.direct == "all", self.pattern.recurrent
        scored = recurrent and reads_several(self.pattern)
        names = {"values": direct, "keys_a": direct, "outputs": recurrent, "keys_b": scored}
        widths = {name: self.key_dim if "keys" in name else self.dim for name, kept in names.items() if kept}
        if self.normalise == "whole" and recurrent:
            widths["logs"] = 1  # l of `whole.py`, which grows with the sequence
        return widths

    @property
    def slots(self) -> int:
        return int(self.expiry.shape[1])

    def make_room(self, end: int) -> None:
        """Slots for `end` tokens, or a clear refusal."""
        if self.tokens is not None:
            if end > self.tokens:
                raise ValueError(
                    f"this cache was made for {self.tokens:,} tokens, got {end:,}: "
                    "make it with a larger `tokens`, or without, so that it grows."
                )
            return
        if end < self.room:
            return
        self.room = max(2 * self.room, end + 1)
        more = self.pattern.slots(self.room) - self.slots
        self.parts = {name: _longer(part, more) for name, part in self.parts.items()}
        self.expiry = np.pad(self.expiry, ((0, 0), (0, more)), constant_values=-1)

    def reads(self, group: slice) -> Integers:
        """The slots in which the next token of these sequences, all at one position, finds what it reads."""
        position = int(self.positions[group.start])
        if self.pattern.contiguous_columns:  # whatever is still alive
            return np.flatnonzero(self.expiry[group.start] >= position)
        return self.slots_of(self.pattern.sources(position))

    def advance(self, group: slice, count: int) -> tuple[Integers, Integers]:
        """Count the next tokens as seen; which slots they take that stay alive, and which of them these are."""
        position = int(self.positions[group.start])
        self.positions[group] = position + count
        if count == 1:  # a decoder waits for this: no arrays to work on
            slot = self.pattern.slot(position)
            if not 0 <= slot < self.slots:  # the last token of a full cache is read by none
                return _NONE, _NONE
            self.expiry[group, slot] = position + min(self.pattern.life(position), _FOR_EVER)
            return np.array([slot]), np.array([0])
        kept = held(self.pattern, position + count)
        kept = kept[kept >= position]
        slots = self.slots_of(kept)
        fits = (slots >= 0) & (slots < self.slots)
        self.expiry[group, slots[fits]] = self._ends(kept[fits])
        return slots[fits], kept[fits] - position

    def slots_of(self, positions: Integers) -> Integers:
        last = self.pattern.strides.last
        if isinstance(self.pattern, TranslationInvariant):
            return np.array(positions) if last is None else positions % max(last, 1)
        return np.array([self.pattern.slot(int(j)) for j in positions], dtype=np.int64)

    def layout(self) -> Layout:
        if isinstance(self.pattern.strides, Rule):
            raise ValueError(
                f"{self.pattern} is a Python function, which no file can hold: "
                "expected a cache of a pattern with a spelling, like 'stride:k**3+1'."
            )
        names = ("batch", "heads", "kv_heads", "dim", "key_dim", "tokens", "normalise", "room")
        told = {"kind": "slots", "pattern": str(self.pattern), "dtype": str(self.dtype).removeprefix("torch.")}
        return told | {name: getattr(self, name) for name in names} | {"positions": self.positions.tolist()}

    @classmethod
    def hollow(cls, layout: Layout) -> DecodeCache:
        """From its layout, on the device "meta"."""
        names = ("pattern", "batch", "heads", "dim", "key_dim", "normalise", "kv_heads")
        told = {name: layout[name] for name in names}
        cache = cls(**told, tokens=layout["room"], dtype=getattr(torch, layout["dtype"]), device="meta")
        if layout["tokens"] not in (None, cache.room):
            raise ValueError(f"expected room for {layout['tokens']} tokens, got room for {cache.room}")
        cache.tokens = layout["tokens"]
        cache.positions[:] = checked_positions(layout["positions"], cache.batch, cache.room)
        cache._recount(list(range(cache.batch)))
        return cache

    def _ends(self, kept: Integers) -> Integers:
        """The last token that reads each of these."""
        if isinstance(self.pattern, TranslationInvariant):
            return kept + np.int64(min(self.pattern.life(0), _FOR_EVER))
        return kept + np.array([min(self.pattern.life(int(j)), _FOR_EVER) for j in kept], dtype=np.int64)

    def _forgets(self, target: int | None = None) -> bool:
        """Where no slot is ever given to a newer token; to the very beginning, always."""
        everything = self.pattern.strides == Contiguous(None)
        endless = isinstance(self.pattern, TranslationInvariant) and self.pattern.strides.last is None
        return target == 0 or everything or endless

    def _why_not(self, row: int, target: int) -> str:
        kept = held(self.pattern, target)
        slots = self.slots_of(kept)
        lost = sorted(slots[self.expiry[row, slots] != self._ends(kept)].tolist())
        if not lost:
            return f"{self.pattern} gives slots to newer tokens, and which are left depends on how they came."
        shown = ", ".join(map(str, lost[:8])) + (", …" if len(lost) > 8 else "")
        return (
            f"{self.pattern} gives slots to newer tokens, and slot{'s' * (len(lost) > 1)} {shown} no longer "
            f"hold{'s' * (len(lost) == 1)} what token {target} reads."
        )

    def _settle(self, change: Change) -> None:
        self.expiry = change.numbers(self.expiry)
        self.device, self.dtype = change.device or self.device, change.dtype or self.dtype

    def _recount(self, rows: list[int]) -> None:
        for row in rows:
            kept = held(self.pattern, int(self.positions[row]))
            slots = self.slots_of(kept)
            fits = (slots >= 0) & (slots < self.slots)
            self.expiry[row] = -1
            self.expiry[row, slots[fits]] = self._ends(kept[fits])


def _longer(part: Tensor, more: int) -> Tensor:
    """More slots, empty, after those there are; a gradient finds its way through."""
    if part.requires_grad:
        return torch.nn.functional.pad(part, (0, 0, 0, more))
    longer = zeros((*part.shape[:2], part.shape[2] + more, part.shape[3]), part.dtype, part.device)
    longer[:, :, : part.shape[2]] = part
    return longer
