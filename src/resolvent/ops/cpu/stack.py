"""One token of every sequence through a stack of blocks, in one call of a compiled function (`kernels/stack.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resolvent.kernels import UNIT, Kernel, KernelVariant, process, variants_of
from resolvent.kernels.layouts import BLOCK, CALL, GROUP
from resolvent.ops.cache.slots import DecodeCache
from resolvent.ops.cpu.layout import span
from resolvent.ops.cpu.openmp import run_compiled, team_functions
from resolvent.patterns.strides import Integers

Table = Mapping[str, int]

stack = Kernel("stack.stack")

_WORTH_THREADS = 1 << 22  # products of weights and inputs, below which a second thread gains little
_ALL = slice(0, None)
_KEPT = ("values", "keys_a", "outputs", "keys_b")


class StackShape(NamedTuple):
    """What all blocks have in common."""

    dim: int
    heads: int
    kv_heads: int
    inner_dim: int
    head_dim: int
    vocab_size: int
    rope: float | None
    eps: float


class StackBlock(NamedTuple):
    """A block: addresses of its parameters as `BLOCK` names them, and its groups of heads, as `GROUP` does."""

    parameters: Table
    groups: Sequence[tuple[Table, DecodeCache]]


def advance_stack(tokens: Tensor, blocks: Sequence[StackBlock], around: Table, shape: StackShape) -> Tensor:
    """Logits (B, 1, vocab_size) of what follows the tokens (B, 1); caches, which have room, then hold these.

    `around` has the addresses of embedding, norm and norm_bias.
    """
    batch, ids = len(tokens), tokens.reshape(-1).long()
    positions = blocks[0].groups[0][1].positions.copy()
    plans = _Plans()
    groups = [_group(table, cache, plans) for block in blocks for table, cache in block.groups]
    ends = [0, *accumulate(len(block.groups) for block in blocks)]
    rows = [{**block.parameters, "first_group": ends[i], "last_group": ends[i + 1]} for i, block in enumerate(blocks)]
    projected = [shape.kv_heads * shape.head_dim + row["score_rows"] + row["gates"] for row in rows]
    pitch = max(projected)
    team, threads = team_functions(), torch.get_num_threads()
    if team is None or threads == 1 or batch * _weights(shape, projected) < _WORTH_THREADS:
        team, threads = None, 1
    scratch_size = (plans.most // UNIT + 2) * UNIT + 2
    logits = torch.empty(batch, 1, shape.vocab_size, dtype=torch.float32, device="cpu")
    lists = plans.lists()
    rotations = _rotations(positions[: plans.positions], shape)
    numbers = np.array([shape.head_dim**-0.5, shape.eps], dtype=np.float32)
    areas = {
        "x": batch * shape.dim, "rows": batch * pitch, "mixed": batch * shape.heads * shape.head_dim,
        "hidden": batch * shape.inner_dim, "normed": threads * batch * shape.dim, "scratch": threads * scratch_size,
    }  # fmt: skip
    memory = np.empty(sum(areas.values()), dtype=np.float32)
    starts = accumulate(areas.values(), initial=0)
    arrays = {
        "blocks": _records(BLOCK, rows), "groups": _records(GROUP, groups), "rotations": rotations, "numbers": numbers,
        **lists,
    }  # fmt: skip
    call = {
        **{name: array.ctypes.data for name, array in arrays.items()},
        **{name: memory.ctypes.data + 4 * start for name, start in zip(areas, starts, strict=False)},
        "thread_number": 0, "team_size": 0, "barrier": 0, "block_count": len(blocks), "tokens": ids.data_ptr(),
        "batch": batch, "positions": plans.positions, "rotated": int(shape.rope is not None), "dim": shape.dim,
        "heads": shape.heads, "shared": shape.kv_heads, "inner": shape.inner_dim, "head_dim": shape.head_dim,
        "vocabulary": shape.vocab_size, "pitch": pitch, "logits": logits.data_ptr(), "scratch_size": scratch_size,
        **around,
    }  # fmt: skip
    size = span(shape.head_dim, logits)
    if team is not None:
        record = _records(CALL, [{**call, **team._asdict()}])
        compiled = stack.compiled(record.ctypes.data, size)
        if compiled is not None:
            run_compiled(*compiled, threads)
            return logits
    record = _records(CALL, [call])
    stack(record.ctypes.data, size)
    return logits


def prepare_stack(head_dim: int) -> None:
    """See that the function for heads of this size is on disk soon, compiled while a prompt is read."""
    if head_dim % UNIT == 0:
        process.start([stack_variants(head_dim)])


def stack_variants(head_dim: int) -> list[KernelVariant]:
    with variants_of() as wanted:
        stack(0, span(head_dim, torch.empty(0, dtype=torch.float32, device="cpu")))
    return wanted


class _Plans:
    """The slots that sequences read and write: caches of one pattern at the same positions share a plan."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.leaders: list[DecodeCache] = []
        self._lists: list[tuple[Integers, Integers, Integers]] = []
        self.most = self._count = 0

    def number(self, cache: DecodeCache) -> int:
        """The plan of a cache for its next token, which is then counted as seen."""
        key = (cache.pattern, cache.slots, cache.positions.tobytes())
        number = self.numbers.get(key)
        if number is not None:
            cache.follow(self.leaders[number], self._lists[number][2])
            return number
        reads, begins = cache.reads(_ALL)
        self.most = max(self.most, int(np.diff(begins).max()))
        self._lists.append((reads, begins + self._count, cache.take(_ALL)))
        self._count += len(reads)
        self.leaders.append(cache)
        self.numbers[key] = len(self.leaders) - 1
        return self.numbers[key]

    @property
    def positions(self) -> int:
        """How many entries a plan has: one for all sequences, or one for each."""
        return len(self._lists[0][2])

    def lists(self) -> dict[str, Integers]:
        lists = zip(("reads", "begins", "writes"), zip(*self._lists, strict=True), strict=True)
        return {name: np.concatenate(own) for name, own in lists}


def _weights(shape: StackShape, projected: Sequence[int]) -> int:
    """How many a token is multiplied by."""
    rows = sum(projected) + len(projected) * (shape.heads * shape.head_dim + 2 * shape.inner_dim)
    return shape.dim * (rows + shape.vocab_size)


def _group(table: Table, cache: DecodeCache, plans: _Plans) -> Table:
    addresses = {name: cache.tensors[name].data_ptr() if name in cache.tensors else 0 for name in _KEPT}
    return {**table, **addresses, "slots": cache.slots, "plan": plans.number(cache)}


def _rotations(positions: Integers, shape: StackShape) -> npt.NDArray[np.float32]:
    """Cosine and sine for each pair of a head's numbers, in turns, at these positions."""
    if shape.rope is None:
        return np.empty(0, dtype=np.float32)
    slow = shape.rope ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = positions[:, None] * slow
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def _records(kind: np.dtype[np.void], rows: Iterable[Table]) -> npt.NDArray[np.void]:
    return np.array([tuple(row[name] for name in kind.names or ()) for row in rows], dtype=kind)
