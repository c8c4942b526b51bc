"""The command that times the operator."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from resolvent.cli.shared import AsJson, HeadDim, Heads, app, progress, say_written
from resolvent.patterns import PAPER_STRUCTURES, pattern

SPARSE_STRUCTURES = [spec for spec in PAPER_STRUCTURES if spec not in ("attention", "local:8", "dense")]


@app.command("bench")
def bench_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Patterns to time; the paper's sparse recurrences if none is named."),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option("--n", "-n", help="Sequence length in tokens, 4096 if not given; repeat to see growth."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="A peer: sdpa, flex, paper or scipy; repeat for more. The first, or sdpa, is the yardstick; or none."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 1,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rounds: Annotated[int, typer.Option(help="How often each case is timed.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's own choice if not given.")] = None,
    backend: Annotated[str, typer.Option(help="auto, or a backend by name.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory", help="Measure peak memory, too (Linux only).")] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="Time one more token at position n instead, from a cache; against sdpa.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw times against n (several lengths) or speedups (one).")] = None,
    as_json: AsJson = False,
) -> None:
    """Time the operator, forward and with backward, against named peers and against what the machine can do.

    All cases take turns in one process, so that what else the machine does falls on all alike; medians are compared.

    Peers: sdpa is torch's causal attention; flex is FlexAttention on the
    pattern's A alone (compiled, which needs a C++ compiler; forward only on a
    CPU); paper is dense masked matrices and a triangular solve; scipy is SciPy's
    sparse triangular solve on ready-made coefficients (one head is timed and
    multiplied; forward only).

    Of bound: the time that loading ka, x, kb and y of every source of every
    token takes at the measured speed of the L2 cache (3 times that with
    backward), over the time taken. For sdpa and paper the same with 2·n²·D
    operations per head (paper: twice that; 3.5 times that with backward) at the
    measured speed of matrix products.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # or torch's idle threads spin while ours work
    from resolvent.bench import bench, bench_decode, use_threads

    use_threads(threads)
    if decode and (against not in (None, ["sdpa"]) or memory or plot):
        raise ValueError("--decode is timed against sdpa alone: expected no --against, --memory or --plot with it.")
    chosen, lengths = [pattern(spec) for spec in specs or SPARSE_STRUCTURES], sorted(set(n or [4096]))
    on = ", ".join(f"{length:,}" for length in lengths)
    with progress(f"timing {len(chosen)} patterns on {on} tokens", (rounds + 1) * len(lengths)) as advance:
        if decode:
            steps = bench_decode(
                chosen,
                lengths,
                batch=batch,
                heads=heads,
                head_dim=head_dim,
                rounds=rounds,
                after_each=advance,
            ).to_dict()
            _print_steps(steps, as_json)
            return
        report = bench(
            chosen,
            lengths,
            peers=[] if against == ["none"] else against or ["sdpa"],
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            rounds=rounds,
            backend=backend,
            memory=memory,
            after_each=advance,
        ).to_dict()
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_speeds(report)
    if plot is not None:
        from resolvent.report import figures

        say_written(figures.save(figures.speed_figure(report), plot))


def _print_steps(report: dict[str, Any], as_json: bool) -> None:
    from resolvent.report import tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    for position in report["positions"]:
        Console().print(tables.steps(report, position))


def _print_speeds(report: dict[str, Any]) -> None:
    from resolvent.report import tables

    console = Console()
    for length in report["lengths"]:
        console.print(tables.speeds(report, length))
    if report["growth"]:
        console.print(tables.speed_growth(report))
    console.print(tables.speed_notes(report), markup=False, highlight=False, style="dim")
