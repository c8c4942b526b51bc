"""How `resolvent bench --model` prints what a model of a GPU expects."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from resolvent.cli.bench_plan import Plan
from resolvent.errors import SettingError, closest
from resolvent.patterns import pattern

if TYPE_CHECKING:
    from resolvent.bench.gpu_model import Estimate


def print_model(device: str, plan: Plan, *, batch: int, heads: int, head_dim: int, as_json: bool) -> None:
    """A table of estimates, and the constants that they are made of."""
    from resolvent.bench.gpu_model import DEVICES, RESIDENT, estimate

    if device not in DEVICES:
        raise SettingError(f"expected --model {', '.join(DEVICES)}, got '{device}'.{closest(device, DEVICES)}")
    for spec in plan.patterns:
        if any(stage.is_dense for stage in pattern(spec).stages):
            raise SettingError(f"--model knows the triton backend: expected sparse patterns, got '{spec}'.")
    gpu = DEVICES[device]
    estimates = [
        estimate(spec, n, device, batch=batch, heads=heads, head_dim=head_dim)
        for spec in plan.patterns
        for n in plan.lengths
    ]
    if as_json:
        rows = [asdict(one) | {"speedup": one.speedup} for one in estimates]
        print(json.dumps({"model": asdict(gpu), "measured": False, "estimates": rows}, indent=2))
        return
    console = Console()
    shape = f"bfloat16, batch {batch}, {heads} heads of {head_dim}"
    console.print(f"A model of {gpu.name}, {shape}: nothing here was measured", style="bold", highlight=False)
    columns = (
        "pattern",
        "tokens",
        "forward ms",
        "backward ms",
        "FlashAttention ms",
        "times as fast",
        "launches",
        "chain",
    )
    table = Table(*columns)
    for one in estimates:
        table.add_row(
            one.pattern, f"{one.n:,}", f"{one.forward_ms:.2f}", f"{one.backward_ms:.2f}", f"{one.flash_ms:.2f}",
            f"{one.speedup:.1f}", f"{one.launches[0]} + {one.launches[1]}", f"{one.chain:,}",
        )  # fmt: skip
    console.print(table)
    longest = max(plan.lengths)
    console.print(f"Kernels at {longest:,} tokens, forward and back", style="bold", highlight=False)
    console.print(_kernels([one for one in estimates if one.n == longest]))
    behind = sorted({one.pattern for one in estimates if one.speedup < 1})
    if behind:
        console.print(
            f"The model expects FlashAttention to be faster than {', '.join(behind)} at some of these lengths."
        )
    console.print(
        f"Constants: memory {gpu.memory_tbs} TB/s, L2 {gpu.cache_tbs} TB/s, tensor cores {gpu.tensor_tflops} TFLOP/s "
        f"(tf32 operands, three products each), vectors {gpu.vector_tflops} TFLOP/s, FlashAttention "
        f"{gpu.flash_tflops} TFLOP/s, {gpu.step_us} µs per step of a chain, {gpu.launch_us} µs per launch, "
        f"{gpu.processors} multiprocessors with {RESIDENT} programs each.",
        highlight=False,
        style="dim",
    )


def _kernels(estimates: list[Estimate]) -> Table:
    """What each launch must do, from its real parameters."""
    table = Table("pattern", "kernel", "programs", "GB", "GB with L2", "GFLOP", "chain", "ms")
    for one in estimates:
        for kernel in one.kernels:
            table.add_row(
                one.pattern, kernel.kernel, f"{kernel.programs:,}", f"{kernel.memory_bytes / 1e9:.2f}",
                f"{kernel.all_bytes / 1e9:.2f}", f"{kernel.flops / 1e9:,.0f}", f"{kernel.chain:,}",
                f"{kernel.milliseconds:.2f}",
            )  # fmt: skip
    return table
