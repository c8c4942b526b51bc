"""What a decoder keeps: the rows that later tokens may still read, each in the slot its pattern assigns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis.cost import reads_several
from resolvent.ops.memory import zeros
from resolvent.ops.rows import held
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.strides import Integers
from resolvent.patterns.translation_invariant import TranslationInvariant

Normalise = Literal["gate", "whole"]

_FOR_EVER = 1 << 62


@dataclass(eq=False)
class DecodeCache:
    """Slots for one layer, empty at first. `nbytes` is known before the first token.

    With `tokens` given, the cache is made for so many tokens and never changes its size. Without, it grows as it must:
    by doubling for patterns that read arbitrarily far back, by a slot now and then for cache-efficient ones.
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
    parts: dict[str, Tensor] = field(init=False, repr=False)
    positions: Integers = field(init=False)
    expiry: Integers = field(init=False, repr=False)
    room: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.pattern = pattern(self.pattern)
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"expected a cache for at least one token, got tokens={self.tokens}.")
        if self.normalise not in ("gate", "whole"):
            raise ValueError(f"expected normalise 'gate' or 'whole', got {self.normalise!r}.")
        self.room = 64 if self.tokens is None else self.tokens
        slots = self.pattern.slots(self.room)
        shape = (self.batch, self.heads, slots)
        self.parts = {name: zeros((*shape, width), self.dtype, self.device) for name, width in self._widths().items()}
        if self.normalise == "whole" and self.pattern.recurrent:  # l of `whole.py`, which grows with the sequence
            self.parts["logs"] = zeros((*shape, 1), torch.float64, self.device)
        self.positions = np.zeros(self.batch, dtype=np.int64)
        self.expiry = np.full((self.batch, slots), -1, dtype=np.int64)

    def _widths(self) -> dict[str, int]:
        """The tensors that are kept and the length of their rows; a softmax over one entry needs no keys."""
        direct, recurrent = self.pattern.direct == "all", self.pattern.recurrent
        scored = recurrent and reads_several(self.pattern)
        names = {"values": direct, "keys_a": direct, "outputs": recurrent, "keys_b": scored}
        return {name: self.key_dim if "keys" in name else self.dim for name, kept in names.items() if kept}

    @property
    def slots(self) -> int:
        return int(self.expiry.shape[1])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def clone(self) -> Self:
        """A cache of its own, from which another continuation can go on."""
        copy = type(self)(
            self.pattern, self.batch, self.heads, self.dim, self.key_dim, 1, self.dtype, self.device, self.normalise
        )
        copy.tokens, copy.room = self.tokens, self.room
        copy.parts = {name: part.clone() for name, part in self.parts.items()}
        copy.positions, copy.expiry = self.positions.copy(), self.expiry.copy()
        return copy

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
        if count == 1:
            kept, slots = np.array([position]), np.array([self.pattern.slot(position)])
        else:
            kept = held(self.pattern, position + count)
            kept = kept[kept >= position]
            slots = self.slots_of(kept)
        fits = (slots >= 0) & (slots < self.slots)  # the last token of a full cache is read by none
        for j, slot in zip(kept[fits].tolist(), slots[fits].tolist(), strict=True):
            self.expiry[group, slot] = j + min(self.pattern.life(j), _FOR_EVER)
        return slots[fits], kept[fits] - position

    def slots_of(self, positions: Integers) -> Integers:
        last = self.pattern.strides.last
        if isinstance(self.pattern, TranslationInvariant):
            return np.array(positions) if last is None else positions % max(last, 1)
        return np.array([self.pattern.slot(int(j)) for j in positions], dtype=np.int64)


def _longer(part: Tensor, more: int) -> Tensor:
    """More slots, empty, after those there are; a gradient finds its way through."""
    if part.requires_grad:
        return torch.nn.functional.pad(part, (0, 0, 0, more))
    longer = zeros((*part.shape[:2], part.shape[2] + more, part.shape[3]), part.dtype, part.device)
    longer[:, :, : part.shape[2]] = part
    return longer
