"""A model of how long the kernels of the `triton` backend take on a GPU: arithmetic, nothing that was measured.

Launches, programs, blocks and scratch are those of the real launches, recorded on tensors without memory. Each kernel
then takes the longest of three: bytes at the memory's speed, operations at the tensor cores' speed, and, in sweeps, the
chain of steps that wait for each other. Constants are in `DEVICES` and printed with every table. FlashAttention is its
published speed in bfloat16. A model is wrong somewhere: `resolvent gpu-check` measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import rows_of
from resolvent.ops.triton import fused
from resolvent.ops.triton.launcher import Constants, Launched, recording
from resolvent.patterns import PatternLike, Stage, as_pattern


@dataclass(frozen=True)
class Device:
    """What a GPU can do, sustained. A step is one block of a sweep: loads, two products, a store, a barrier."""

    name: str
    memory_tbs: float
    cache_tbs: float
    tensor_tflops: float  # of tf32 operands
    vector_tflops: float
    flash_tflops: float  # FlashAttention, forward, bfloat16
    step_us: float
    launch_us: float
    processors: int


DEVICES = {
    "a100": Device("A100 80 GB", 1.6, 4.0, 110, 14, 170, 2.5, 4.0, 108),
    "h100": Device("H100 SXM", 2.7, 5.5, 300, 40, 400, 2.0, 4.0, 132),
    "mi300x": Device("MI300X", 4.2, 8.0, 100, 60, 300, 3.0, 5.0, 304),  # no tf32x3: float32 products
}
RESIDENT = 2  # programs that a multiprocessor runs at once


@dataclass(frozen=True)
class Work:
    """What a launch must do: bytes to and from memory, bytes read again, operations, and steps one after another."""

    memory: float = 0.0
    cache: float = 0.0
    products: float = 0.0
    vectors: float = 0.0
    chain: int = 0

    def milliseconds(self, device: Device, programs: int) -> float:
        waves = -(-programs // (device.processors * RESIDENT)) if self.chain else 0
        longest = max(
            self.memory / device.memory_tbs / 1e12,
            self.cache / device.cache_tbs / 1e12,
            self.products / device.tensor_tflops / 1e12,
            self.vectors / device.vector_tflops / 1e12,
            waves * self.chain * device.step_us / 1e6,
        )
        return 1e3 * longest + device.launch_us / 1e3


@dataclass(frozen=True)
class KernelEstimate:
    """One launch: its kernel, programs, bytes (from memory, and in all), floating-point operations, chain and time."""

    kernel: str
    programs: int
    memory_bytes: float
    all_bytes: float
    flops: float
    chain: int
    milliseconds: float


@dataclass(frozen=True)
class Estimate:
    """A pattern at one length: milliseconds of both passes and of FlashAttention's forward, launches, longest chain."""

    pattern: str
    n: int
    forward_ms: float
    backward_ms: float
    flash_ms: float
    launches: tuple[int, int]
    chain: int
    scratch_bytes: int
    kernels: tuple[KernelEstimate, ...]

    @property
    def speedup(self) -> float:
        """Times as fast as FlashAttention, forward."""
        return self.flash_ms / self.forward_ms


def estimate(
    pattern: PatternLike, n: int, device: str, *, batch: int = 1, heads: int = 96, head_dim: int = 64
) -> Estimate:
    """What the model says of `mix` in bfloat16."""
    gpu, stages = DEVICES[device], as_pattern(pattern).stages
    forward, backward = [], []
    for stage in stages:
        one, other = _launches(stage, n, batch, heads, head_dim)
        forward += one
        backward += other
    flash = 4.0 * n * n / 2 * head_dim * heads * batch / gpu.flash_tflops / 1e9
    kernels = tuple(_estimate(launched, gpu) for launched in (*forward, *backward))
    return Estimate(
        str(as_pattern(pattern)),
        n,
        sum(kernel.milliseconds for kernel in kernels[: len(forward)]),
        sum(kernel.milliseconds for kernel in kernels[len(forward) :]),
        flash,
        (len(forward), len(backward)),
        max((kernel.chain for kernel in kernels[: len(forward)]), default=0),
        sum(_scratch(launched) for launched in forward if "weights" in launched.named),
        kernels,
    )


def crossover(pattern: PatternLike, device: str, *, heads: int = 96, head_dim: int = 64) -> int | None:
    """The least power of two of tokens from which the model says that we win, up to 128k; None if never."""
    ahead = None
    for n in (2**exponent for exponent in range(17, 9, -1)):
        if estimate(pattern, n, device, heads=heads, head_dim=head_dim).speedup <= 1:
            break
        ahead = n
    return ahead


def _launches(stage: Stage, n: int, batch: int, heads: int, head_dim: int) -> tuple[list[Launched], list[Launched]]:
    """Of one stage, forward and back, as the backend would launch them."""
    x = torch.empty((batch, heads, n, head_dim), dtype=torch.bfloat16, device="meta")
    inputs = Inputs(x, x, x, x, x, torch.empty((batch, heads, n), dtype=torch.bfloat16, device="meta"))
    rows = rows_of(stage, (0, n))
    with recording() as forward:
        saved = fused.forward(inputs, rows, 1.0)
    with recording() as backward:
        fused.backward(x, saved, inputs, rows, 1.0)
    return forward, backward


def _estimate(launched: Launched, gpu: Device) -> KernelEstimate:
    work = _work(launched)
    return KernelEstimate(
        launched.kernel.partition(".")[2],
        launched.programs,
        work.memory,
        work.memory + work.cache,
        work.products + work.vectors,
        work.chain,
        work.milliseconds(gpu, launched.programs),
    )


def _scratch(launched: Launched) -> int:
    named = launched.named
    return int(sum(named[name].nbytes for name in ("weights", "inverses", "transfer") if name in named))


def _work(launched: Launched) -> Work:
    return _WORK[launched.kernel.partition(".")[2]](launched.named, launched)


def _far(a: Constants, rows: int) -> tuple[float, float, float]:
    """Of one head: rows read before blocks, pairs of rows that tiles multiply, pairs that vectors do."""
    if a["STRIDED"]:
        reads = a["width"] * rows
        return reads, 0, reads
    return a["weight_rows"], a["weight_rows"] * a["BLOCK"], 0


def _coefficients(a: Constants, launched: Launched) -> Work:
    heads, rows, b, d, dk = launched.grid[1], launched.grid[0] * a["BLOCK"], a["BLOCK"], a["D"], a["DK"]
    sides = a["SCORED"] + (a["DIRECT"] and a["OUTPUT"])
    direct = a["DIRECT"] and a["OUTPUT"]
    reads, tiles, vectors = _far(a, rows)
    near = rows * (2 * sides * dk + (direct + a["RECURRENT"]) * d) * a["x"].itemsize
    kept = 4 * (rows * (b + d) + 3 * reads * (b if not a["STRIDED"] else 1)) * a["RECURRENT"]
    pair = 2 * (sides * dk + direct * d)
    inverse = 2 * (a["LEVELS"] - 1) * 2 * b * b * rows * a["RECURRENT"]
    return Work(
        memory=heads * (near + kept),
        cache=heads * reads * (sides * dk + direct * d) * a["x"].itemsize,
        products=3 * heads * (rows * b * (pair + 2 * d * a["OUTPUT"]) + tiles * pair + inverse),
        vectors=heads * vectors * pair,
    )


def _sweep(a: Constants, launched: Launched) -> Work:
    heads, b, d = launched.grid[0], a["BLOCK"], a["D"]
    rows = a["block_count"] * b
    reads, tiles, vectors = _far(a, rows)
    weights = 4 * (rows * b + reads * (b if not a["STRIDED"] else 1)) * launched.grid[2]
    return Work(
        memory=heads * (8 * rows * d + weights),
        cache=heads * 4 * reads * d,
        products=3 * heads * 2 * d * (rows * b + tiles),
        vectors=heads * 2 * d * vectors,
        chain=-(-a["block_count"] // launched.grid[1]),
    )


def _transfers(a: Constants, launched: Launched) -> Work:
    """Coefficients of all blocks, and the sweeps of chunks: their own channels and the columns of their matrices."""
    chunks, heads = launched.grid
    blocks = a["block_count"]
    block = replace(launched, grid=(blocks, heads))
    work = _coefficients(a | {"STRIDED": False, "RECURRENT": True}, block)
    columns = a["D"] * a["OUTPUT"] + a["live_width"]
    sweep = _sweep(a | {"STRIDED": False, "D": columns}, replace(launched, grid=(heads, chunks, 1)))
    steps = -(-blocks // chunks) * (1 + -(-columns // a["BV"]))
    return Work(
        memory=work.memory + heads * 4 * a["new"] * a["live_width"],
        cache=work.cache + sweep.memory + sweep.cache,
        products=work.products + sweep.products,
        chain=steps,
    )


def _carry(a: Constants, launched: Launched) -> Work:
    heads, sequences, programs = launched.grid
    rows, width, d = a["new"], a["live_width"], a["D"]
    return Work(
        memory=heads * (8 * rows * d + 4 * rows * width * programs),
        cache=heads * 4 * a["chunk_count"] * width * d,
        products=3 * heads * 2 * rows * width * d,
        chain=-(-a["chunk_count"] // sequences),
    )


def _slopes(a: Constants, launched: Launched) -> Work:
    heads, rows, b, d, dk = launched.grid[1], launched.grid[0] * a["BLOCK"], a["BLOCK"], a["D"], a["DK"]
    if not a["READS"]:
        return Work(memory=heads * rows * d * 8)
    reads, tiles, vectors = _far(a, rows)
    pair = 2 * (2 * d + 2 * dk * a["SCORED"])
    kept = 4 * (reads * (1 + a["A"]) if a["STRIDED"] else reads * (dk + d * a["A"]))
    return Work(
        memory=heads * (rows * (2 * d + 2 * dk) * 4 + kept),
        cache=heads * 2 * reads * (d + dk) * a["k"].itemsize,
        products=3 * heads * (rows * b * 2 * pair + tiles * 2 * pair),
        vectors=heads * vectors * 2 * pair,
    )


def _collect(a: Constants, launched: Launched) -> Work:
    heads, rows, d, dk = launched.grid[1], launched.grid[0] * a["BLOCK"], a["D"], a["DK"]
    reads, _, vectors = _far(a, rows)
    each = dk * (a["KEYS"] + a["SCORED"]) + d * a["DIRECT"]
    return Work(memory=heads * rows * each * 6, cache=heads * reads * each * 4, vectors=heads * 2 * vectors * each)


_WORK: dict[str, Callable[[Constants, Launched], Work]] = {
    "coefficients": _coefficients,
    "sweep": _sweep,
    "transfers": _transfers,
    "carry": _carry,
    "carry_back": _carry,
    "sweep_back": lambda a, launched: replace(_sweep(a, launched), memory=1.5 * _sweep(a, launched).memory),
    "slopes": _slopes,
    "collect": _collect,
}
