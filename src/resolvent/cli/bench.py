"""The command that benchmarks the operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from resolvent.cli.shared import AsJson, HeadDim, Heads, app, parse_length, progress, say_written
from resolvent.patterns import PAPER_STRUCTURES, pattern

if TYPE_CHECKING:
    from resolvent.bench.decode import DecodeReport
    from resolvent.bench.results import Report

SPARSE_STRUCTURES = [spec for spec in PAPER_STRUCTURES if spec not in ("attention", "local:8", "dense")]


@app.command("bench")
def bench_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Patterns to time.", show_default="the paper's sparse recurrences"),
    ] = None,
    *,
    n: Annotated[
        list[int] | None,
        typer.Option(
            "--n",
            "-n",
            parser=parse_length,
            metavar="N",
            help="Sequence length in tokens, such as 4096 or 128k (repeatable, to measure growth).",
            show_default="4096",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Peer to compare with: sdpa, flex, paper or scipy (repeatable), or none. Speedups are over the first.",
            show_default="sdpa",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 1,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rounds: Annotated[int, typer.Option(help="Timed runs of each case.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Number of threads.", show_default="torch's default")] = None,
    backend: Annotated[str, typer.Option(help="Backend of the operator, or auto.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory (Linux only).")] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="Time the decoding of one token at position n instead, against sdpa.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure: times against n for several lengths, speedups for one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time the operator, forward and with backward, against peers and against the limits of the machine.

    All cases take turns in one process, so that other load on the machine
    affects all of them alike; medians are compared.

    Peers: sdpa is torch's causal attention; flex is FlexAttention on the
    pattern's A alone (compiled, which needs a C++ compiler; forward only on a
    CPU); paper is dense masked matrices and a triangular solve; scipy is SciPy's
    sparse triangular solve with precomputed coefficients (one head is timed and
    multiplied; forward only).

    Of bound: the time to load ka, x, kb and y of every source of every token at
    the measured speed of the L2 cache (3 times that with backward), divided by
    the measured time. For sdpa, paper and patterns that read every earlier token,
    the time for 2·n²·D operations per head (paper and dense: twice that; 3.5 times
    that with backward) at the measured speed of matrix products.
    """
    from resolvent.bench import bench, bench_decode, use_threads

    use_threads(threads)
    if decode and (against not in (None, ["sdpa"]) or memory or plot):
        raise ValueError("--decode compares with sdpa only: expected no --against, --memory or --plot with it.")
    patterns, lengths = [pattern(spec) for spec in specs or SPARSE_STRUCTURES], sorted(set(n or [4096]))
    sizes = ", ".join(f"{length:,}" for length in lengths)
    with progress(f"timing {len(patterns)} patterns on {sizes} tokens", (rounds + 1) * len(lengths)) as advance:
        if decode:
            decoded = bench_decode(
                patterns,
                lengths,
                batch=batch,
                heads=heads,
                head_dim=head_dim,
                rounds=rounds,
                after_each=advance,
            )
            _print_steps(decoded, as_json)
            return
        report = bench(
            patterns,
            lengths,
            peers=[] if against == ["none"] else against or ["sdpa"],
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            rounds=rounds,
            backend=backend,
            memory=memory,
            after_each=advance,
        )
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print_speeds(report)
    if plot is not None:
        from resolvent.report import figures

        say_written(figures.save(figures.speed_figure(report), plot))


def _print_steps(report: DecodeReport, as_json: bool) -> None:
    from resolvent.report import tables

    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
        return
    for position in report.positions:
        Console().print(tables.steps(report, position))


def _print_speeds(report: Report) -> None:
    from resolvent.report import tables

    console = Console()
    for length in report.lengths:
        console.print(tables.speeds(report, length))
    if report.growth:
        console.print(tables.speed_growth(report))
    console.print(tables.speed_notes(report), markup=False, highlight=False, style="dim")
