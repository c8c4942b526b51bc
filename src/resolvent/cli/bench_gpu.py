"""The command that checks and times the kernels on a user's GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from resolvent.cli.bench import bench
from resolvent.cli.shared import AsJson, parse_length, progress, say, say_written
from resolvent.files import write_text

if TYPE_CHECKING:
    from resolvent.bench.gpu_check import GpuReport

_SEND = (
    "No machine of ours has a GPU: please send us this table, or the file that --out writes, in an issue of the "
    "project. It says what your GPU has shown, and nothing about you."
)


@bench.command("gpu")
def check_gpu(
    *,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Check the kernels on a CPU, in Triton's interpreter; a minute or two.")
    ] = False,
    n: Annotated[
        list[str] | None,
        typer.Option("--n", "-n", metavar="N", help="Length to time (repeatable).", show_default="1k, 4k, 16k, 64k"),
    ] = None,
    heads: Annotated[int, typer.Option(help="Heads of the timed shapes.")] = 16,
    head_dim: Annotated[int, typer.Option(help="Channels of each head.")] = 64,
    rounds: Annotated[int, typer.Option(help="Timed runs of each case.")] = 10,
    tune: Annotated[bool, typer.Option("--tune", help="Also find the fastest block sizes for this GPU.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report to this file (.json).")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every kernel of the triton backend on this GPU against the reference, and time it.

    First it checks values, gradients, decoding and solve on every kind of pattern
    against float64 on the CPU; then it times the operator against FlashAttention,
    FlexAttention and plain torch operations. So far these kernels have only been
    compiled, and run in Triton's interpreter: never on a GPU.
    """
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from resolvent.bench import gpu_check as check
    from resolvent.ops.triton.sizes import architecture

    device = check.find_device(interpret=interpret)
    lengths = [parse_length(text) for text in n or ["1k", "4k", "16k", "64k"]]
    checks = []
    with progress("checking kernels", 0) as advance:
        for one in check.checks(device, small=interpret):
            checks.append(one)
            advance()
    timings = [] if interpret else list(check.timings(device, lengths, heads, head_dim, rounds))
    report = check.GpuReport(check.device_name(device), architecture(device), check.versions(), checks, timings)
    if tune and not interpret:
        report = check.with_tuning(report, check.tune(device, 4096, heads, head_dim, rounds))
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)
    if out is not None:
        write_text(out, json.dumps(report.to_dict(), indent=2) + "\n")
        say_written(out)
    if not interpret:
        say(_SEND)
    if not report.passed:
        sys.exit(1)


def _print(report: GpuReport) -> None:
    console = Console()
    failed = [check for check in report.checks if not check.passed]
    console.print(f"{report.device} ({report.architecture})", style="bold", highlight=False)
    console.print(", ".join(f"{name} {version}" for name, version in report.versions.items()), highlight=False)
    console.print(f"{len(report.checks) - len(failed)} of {len(report.checks)} checks passed", highlight=False)
    for check in failed:
        console.print(f"failed: {check.name}: error {check.error:.1e}, at most {check.tolerance:.0e}", style="red")
    if report.timings:
        table = Table("case", "tokens", "forward ms", "with backward ms")
        for timing in report.timings:
            both = "" if timing.both_ms is None else f"{timing.both_ms:.2f}"
            table.add_row(timing.name, f"{timing.n:,}", f"{timing.forward_ms:.2f}", both)
        console.print(table)
    if report.tuned:
        console.print(f"fastest sizes: {report.tuned}", highlight=False)
