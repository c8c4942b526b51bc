"""What every launch of a call has in common: sizes, flags and scratch; heads in groups where scratch would be large.

Scratch per head, in numbers of float32 (float64 if inputs are): with n new rows in blocks of b,

    inverses   b · ⌈n / b⌉ · b
    weights    w · b · ⌈n / b⌉ if strided (w offsets), else TILE · b · (tiles listed)
    transfer   m · n in chunks, where at most m rows are alive at once (rounded up to TILE)

and in the backward pass as much again for weights of A and for the slopes of each side if strided, or TILE · (tiles
listed) · (D + 2 D') of partial sums if listed. Where that exceeds `LARGEST_SCRATCH` for all heads, heads take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.ops.call import has_few_alive
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.ops.triton.launcher import Constants
from resolvent.ops.triton.plan import TILE, BlockPlan, ChunkPlan, block_plan, chunk_plan
from resolvent.ops.triton.sizes import Sizes, compiler_options, padded, programs_at_once, sizes_for

LARGEST_SCRATCH = 4 << 30  # bytes
_MOST_HEADS = 65_535  # of one launch


@dataclass(frozen=True)
class Launch:
    """One call: rows, sizes, and the constants that a kernel is compiled for."""

    rows: Rows
    plan: BlockPlan
    sizes: Sizes
    dtype: torch.dtype
    compute: torch.dtype
    d: int
    key_dim: int
    hip: bool
    chunks: ChunkPlan | None = None

    @property
    def direct(self) -> bool:
        return self.rows.pattern.direct == "all"

    @property
    def recurrent(self) -> bool:
        return self.rows.pattern.recurrent

    @property
    def scored(self) -> bool:
        """Whether B has scores: over a single source a softmax is 1, whatever they are."""
        return self.recurrent and self.rows.pattern.reads_several

    @property
    def rounded(self) -> bool:
        """Whether outputs are stored with fewer bits than they are fed back with."""
        return self.recurrent and self.dtype != self.compute

    @property
    def total(self) -> int:
        return self.rows.known + self.rows.new

    @property
    def precision(self) -> str:
        return "ieee" if self.hip or self.compute == torch.float64 else "tf32x3"

    @property
    def score_precision(self) -> str:
        """Products of half-precision numbers are exact in tf32."""
        return "tf32" if self.dtype != self.compute and not self.hip else self.precision

    def constants(self, *names: str) -> Constants:
        """Compile-time constants of a kernel, by name."""
        every = {
            "D": self.d,
            "DK": self.key_dim,
            "BD": padded(self.d),
            "BDK": padded(self.key_dim),
            "BV": self.sizes.channels,
            "BLOCK": self.sizes.block,
            "CHUNK": self.sizes.chunk,
            "CHUNKED": self.chunks is not None,
            "LEVELS": self.sizes.block.bit_length() - 1,
            "TILE": TILE,
            "STRIDED": self.plan.strided,
            "DIRECT": self.direct,
            "RECURRENT": self.recurrent,
            "SCORED": self.scored,
            "ROUNDED": self.rounded,
            "COMPUTE": str(self.compute).removeprefix("torch."),
            "PRECISION": self.precision,
            "EXACT": self.score_precision,
        }
        return {name: every[name] for name in names}

    @property
    def options(self) -> dict[str, int]:
        return compiler_options(self.sizes.warps, hip=self.hip)

    @property
    def roomy_options(self) -> dict[str, int]:
        """Of kernels that hold whole rows of queries, keys and outputs at once."""
        return compiler_options(self.sizes.warps, hip=self.hip, roomy=True)

    @property
    def channel_programs(self) -> int:
        return -(-self.d // self.sizes.channels)

    def scratch_per_head(self, *, backward: bool) -> int:
        """Numbers, by the formula above."""
        inverses = self.plan.block_count * self.sizes.block**2 if self.recurrent else 0
        weights = self.plan.weight_rows * self.sizes.block if self.recurrent else 0
        transfer = 0 if self.chunks is None else self.rows.new * self.chunks.live_width
        if not backward:
            return inverses + weights + transfer
        two = self.for_slopes()
        if two.plan.strided:
            slopes = two.plan.weight_rows * two.sizes.block * (2 * self.direct + self.scored)
        else:
            each = (self.key_dim + self.d) * self.direct + self.key_dim * self.scored
            slopes = two.plan.entries_per_head * each
        return inverses + weights + transfer + slopes

    def for_slopes(self) -> Launch:
        """The same call in the blocks in which gradients of scores are computed."""
        sizes = replace(self.sizes, block=self.sizes.slopes)
        return replace(self, sizes=sizes, plan=block_plan(self.rows, self.plan.near.device, sizes.block))

    def groups(self, heads: int, *, backward: bool) -> Iterator[slice]:
        """Heads that are launched together."""
        each = max(self.scratch_per_head(backward=backward) * self.compute.itemsize, 1)
        together = min(max(LARGEST_SCRATCH // each, 1), _MOST_HEADS)
        return (slice(first, min(first + together, heads)) for first in range(0, heads, together))


def launch_of(x: Tensor, key_dim: int, rows: Rows) -> Launch:
    sizes = sizes_for(x.device, x.shape[-1], key_dim)
    chains = x.shape[0] * x.shape[1] * (len(rows.cuts) - 1) * -(-x.shape[-1] // sizes.channels)
    chunked = bool(sizes.chunk) and has_few_alive(rows.pattern)
    chunked = chunked and 4 * chains < programs_at_once(x.device)  # else the model expects steps of blocks to be faster
    if max(x.shape[-1], key_dim) > 32 and (chunked or x.dtype == torch.float32):
        sizes = replace(sizes, block=16)  # larger ones would spill registers
    plan = block_plan(rows, x.device, sizes.block)
    hip = torch.version.hip is not None
    chunks = chunk_plan(rows, x.device, sizes.block, sizes.chunk) if chunked else None
    return Launch(rows, plan, sizes, x.dtype, compute_dtype(x), x.shape[-1], key_dim, hip, chunks)
