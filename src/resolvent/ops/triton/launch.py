"""Where every kernel is launched: one place, so that launches can be counted, compiled elsewhere and reasoned about.

`recording()` lists launches; without `run` nothing is computed, so that tensors may be on the device "meta" and Triton
need not be there. The ahead-of-time checks and the counts of launches all see what calls do.

`Launch` is what every launch of a call has in common: sizes, flags and scratch; heads in groups where scratch would be
large.

Scratch per head, in numbers of float32 (float64 if inputs are): with n new rows in blocks of b,

    inverses   b · ⌈n / b⌉ · b
    weights    w · b · ⌈n / b⌉ if strided (w offsets), else TILE · b · (tiles listed)
    transfer   m · n in chunks, where at most m rows are alive at once (rounded up to TILE)

and in the backward pass as much again for weights of A and for the slopes of each side if strided, or TILE · (tiles
listed) · (D + 2 D') of partial sums if listed. Where that exceeds `LARGEST_SCRATCH` for all heads, heads take turns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.ops.triton.plan import TILE, BlockPlan, ChunkPlan, block_plan, chunk_plan
from resolvent.ops.triton.sizes import Sizes, compiler_options, padded, programs_at_once, sizes_for

LARGEST_SCRATCH = 4 << 30  # bytes
_LARGEST_LIVE, _LONGEST = 64, 65_536  # counted at one length: what a call runs must not depend on its own
_MOST_HEADS = 65_535  # of one launch
Constants = dict[str, Any]  # numbers, flags and names of types, by the names of a kernel's arguments


@dataclass(frozen=True)
class Launched:
    """A launch: the kernel's module and name, its programs, arguments in order, and compile-time constants."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[object, ...]
    constants: Constants

    @property
    def named(self) -> Constants:
        """Arguments and constants by name."""
        return dict(zip(parameters(self.kernel), self.arguments, strict=False)) | self.constants


_RECORD: ContextVar[tuple[list[Launched], bool] | None] = ContextVar("record of launches", default=None)


@contextmanager
def recording(*, run: bool = False) -> Iterator[list[Launched]]:
    """A list that every launch inside is added to; kernels run only if asked to."""
    record: list[Launched] = []
    token = _RECORD.set((record, run))
    try:
        yield record
    finally:
        _RECORD.reset(token)


def launch(kernel: str, grid: tuple[int, ...], *arguments: object, **constants: object) -> None:
    """Launch a kernel of this package, such as "forward_pass.sweep"."""
    record = _RECORD.get()
    if record is not None:
        launches, run = record
        launches.append(Launched(kernel, grid, arguments, constants))
        if not run:
            return
    compute = {"COMPUTE": _element_type(constants["COMPUTE"])}
    find_kernel(kernel)[grid](*arguments, **(constants | compute))


def find_kernel(name: str) -> Any:
    """The compiled-on-demand function of this name."""
    module, _, function = name.partition(".")
    return getattr(import_module(f"resolvent.ops.triton.{module}"), function)


def _element_type(name: object) -> object:
    import triton.language as tl

    element: object = getattr(tl, str(name))
    return element


def parameters(kernel: str) -> tuple[str, ...]:
    """The names of a kernel's arguments, from its source: Triton need not be there."""
    module, _, function = kernel.partition(".")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    definition = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return tuple(argument.arg for argument in definition.args.args)


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
    chunked = bool(sizes.chunk) and rows.plan(_has_few_alive)
    chunked = chunked and 4 * chains < programs_at_once(x.device)  # else the model expects steps of blocks to be faster
    if max(x.shape[-1], key_dim) > 32 and (chunked or x.dtype == torch.float32):
        sizes = replace(sizes, block=16)  # larger ones would spill registers
    plan = block_plan(rows, x.device, sizes.block)
    hip = torch.version.hip is not None
    chunks = chunk_plan(rows, x.device, sizes.block, sizes.chunk) if chunked else None
    return Launch(rows, plan, sizes, x.dtype, compute_dtype(x), x.shape[-1], key_dim, hip, chunks)


def _has_few_alive(rows: Rows) -> bool:
    """Whether both A and B read what is alive, and at most 64 rows are: then chunks of rows are small matrices.

    Those with a diagonal A would be, too, but the kernel of their chunks spills registers as yet.
    """
    stage = rows.pattern
    reads_alive = stage.recurrent and stage.direct == "all" and stage.contiguous_columns
    return reads_alive and stage.widest_row(_LONGEST) <= _LARGEST_LIVE
