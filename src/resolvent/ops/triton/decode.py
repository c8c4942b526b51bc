"""Decoding on the device: what a token reads and where it goes follows from a counter there, not from the host.

`step` keeps counters and expiry times beside the tensors of a cache, and uploads them where the cache stands elsewhere
than they say: after a prefill, a rewind, another order of rows. From then on a token is one launch; nothing is read
back, and nothing waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from resolvent.ops.backend import Token
from resolvent.ops.precision import compute_dtype
from resolvent.ops.triton.launch import Constants, launch
from resolvent.ops.triton.sizes import compiler_options, padded
from resolvent.patterns import Stage
from resolvent.patterns.explicit import Explicit, listed
from resolvent.patterns.strides import Integers

_LARGEST = np.iinfo(np.int32).max
_TILE = 16
_NAMES = ("values", "keys_a", "outputs", "keys_b")


@dataclass(frozen=True, eq=False)
class SlotTables:
    """Of a pattern and a capacity: the slot of each position, its last reader, and what is read, by kind."""

    kind: int
    slot_of: Tensor
    last_reader: Tensor
    offsets: Tensor
    begins: Tensor
    positions: Tensor


@dataclass(eq=False)
class DeviceState:
    """Counters (B, G) and expiry times (B, G, slots) on the device, and where the host believes they stand."""

    positions: Integers
    capacity: int
    counter: Tensor
    expiry: Tensor
    tables: SlotTables


_states = WeakIdKeyDictionary()  # by a tensor of the cache


def step(token: Token, scale: float) -> Tensor:
    """See `Backend.step`: one launch, if the counters stand where the cache does."""
    x, qa, ka, qb, kb = (t.contiguous() for t in token.inputs[:5])
    gate = token.inputs.gate.contiguous() if token.recurrent else token.inputs.gate  # not read without feedback
    (batch, heads, _), d, key_dim = gate.shape, x.shape[-1], qa.shape[-1]
    groups = kb.shape[1]
    y = x.new_empty((batch, heads, 1, d))
    if not y.numel():
        return y
    state = _state_of(token, groups)
    kept = [token.cache.get(name, y) for name in _NAMES]
    tables = state.tables
    launch(
        "decode_step.step", (batch * groups,),
        x, qa, ka, qb, kb, gate, y, *kept, state.counter, state.expiry, tables.slot_of, tables.last_reader,
        tables.offsets, tables.begins, tables.positions, state.expiry.shape[-1], len(tables.offsets),
        state.capacity, tables.kind, heads // groups, heads // x.shape[1], scale, **_constants(token, d, key_dim),
    )  # fmt: skip
    state.positions += 1
    return y


def _constants(token: Token, d: int, key_dim: int) -> Constants:
    return {
        "D": d, "DK": key_dim, "BD": padded(d), "BDK": padded(key_dim), "TILE": _TILE,
        "DIRECT": token.direct, "RECURRENT": token.recurrent, "SCORED": "keys_b" in token.cache,
        "COMPUTE": str(compute_dtype(token.inputs.x)).removeprefix("torch."),
    } | compiler_options(4, hip=torch.version.hip is not None, roomy=True)  # fmt: skip


def _state_of(token: Token, groups: int) -> DeviceState:
    """The counters beside this cache, uploaded anew unless they stand where it does."""
    key = next(iter(token.cache.values()))
    batch, slots = key.shape[0], key.shape[2]
    positions = np.broadcast_to(token.positions, (batch,))
    state: DeviceState | None = _states.get(key)
    if state is not None and state.capacity == token.capacity and np.array_equal(state.positions, positions):
        return state
    tables = slot_tables(token.pattern, token.capacity, key.device)
    expiry = np.full((batch, slots), -1, dtype=np.int64)
    if tables.kind == 0:
        for row, position in zip(expiry, positions.tolist(), strict=True):
            held = token.pattern.held(position)
            own = token.pattern.slots_of(held)
            fits = (own >= 0) & (own < slots)
            row[own[fits]] = np.minimum(token.pattern.last_readers(held[fits]), _LARGEST)
    state = DeviceState(
        positions.copy(),
        token.capacity,
        _put(np.repeat(positions[:, None], groups, 1), key.device),
        _put(np.repeat(expiry[:, None], groups, 1), key.device),
        tables,
    )
    _states[key] = state
    return state


@lru_cache(maxsize=32)
def slot_tables(pattern: Stage, capacity: int, device: torch.device) -> SlotTables:
    every = np.arange(capacity)
    nothing = np.empty(0, dtype=np.int64)
    slots, offsets, begins, positions = pattern.slots_of(every), nothing, nothing, nothing
    last = np.minimum(pattern.last_readers(every), _LARGEST)
    if pattern.contiguous_columns:
        kind = 0
    elif isinstance(pattern, Explicit):
        kind = 2
        begins, positions = listed(pattern.rows, capacity)
    else:
        kind, offsets = 1, pattern.offsets(capacity)
    put = (_put(array, device) for array in (slots, last, offsets, begins, positions))
    return SlotTables(kind, *put)


def _put(array: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)
