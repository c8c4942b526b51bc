"""The command that benchmarks: the operator, decoding, generation and training steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from resolvent.cli import bench_plan
from resolvent.cli.bench_plan import Mode
from resolvent.cli.shared import AsJson, HeadDim, Heads, app, progress, say_written
from resolvent.patterns import pattern

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from resolvent.bench.decode import DecodeReport
    from resolvent.bench.record import BenchRecord
    from resolvent.bench.results import Report


@app.command("bench")
def bench_patterns(
    context: typer.Context,
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Patterns to time.", show_default="the paper's sparse recurrences"),
    ] = None,
    *,
    generate: Annotated[
        bool, typer.Option("--generate", help="Time generation by whole models after n tokens, against GPT-2.")
    ] = False,
    train_step: Annotated[
        bool, typer.Option("--train-step", help="Time training steps of whole models on n tokens, and their memory.")
    ] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="Time one more token of the operator alone after n tokens, against sdpa.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Run everything that docs/bench.md shows, each in a process of its own.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes and few rounds: less than a minute.")] = False,
    n: Annotated[
        list[str] | None,
        typer.Option(
            "--n",
            "-n",
            "--lengths",
            metavar="N",
            help="Length in tokens, such as 4096 or 128k (repeatable, to measure growth; or 16,1k,16k).",
            show_default="4096; 16,1k,16k with --generate; 256,1k with --train-step",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Shape of whole models, as of 'resolvent model'.", show_default="gpt2-125m")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Peer to compare with: sdpa, flex, paper or scipy (repeatable), or none. Speedups are over the first.",
            show_default="sdpa; GPT-2 of transformers for whole models",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size.", show_default="1; 1 and 8 with --generate")] = None,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    tokens: Annotated[int, typer.Option(help="Tokens that --generate makes in each round.")] = 8,
    rounds: Annotated[
        int | None, typer.Option(help="Timed runs of each case.", show_default="7; 5 for whole models")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of threads.", show_default="torch's default")] = None,
    wait_policy: Annotated[
        str | None,
        typer.Option(
            metavar="plain|passive|active",
            help="Run in a process with OMP_WAIT_POLICY set to this, or not set (plain).",
            show_default="the environment as it is",
        ),
    ] = None,
    avx2: Annotated[
        bool,
        typer.Option("--avx2", help="Run in a process in which neither torch nor the kernels use AVX-512 (x86-64)."),
    ] = False,
    backend: Annotated[str, typer.Option(help="Backend of the operator, or auto.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory (Linux only).")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", "--figure", help="Write a figure: times against n for several lengths, speedups for one."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Add the record to this file (.jsonl); it replaces an earlier run of the same kind and shape."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time the operator, forward and with backward, or whole models, against peers and the limits of the machine.

    All cases take turns in one process, so that other load on the machine
    affects all of them alike; medians are compared. Nothing is set in the
    environment: times are those that a plain script gets.

    Peers: sdpa is torch's causal attention; flex is FlexAttention on the
    pattern's A alone (compiled, which needs a C++ compiler; forward only on a
    CPU); paper is dense masked matrices and a triangular solve; scipy is SciPy's
    sparse triangular solve with precomputed coefficients (one head is timed and
    multiplied; forward only). Whole models are compared with GPT2LMHeadModel of
    transformers in the same shape: --generate with its dynamic cache, the
    default, and its static one; --train-step also with our model on attention.

    Of bound: the time to load ka, x, kb and y of every source of every token at
    the measured speed of the L2 cache (3 times that with backward), divided by
    the measured time. For sdpa, paper and patterns that read every earlier token,
    the time for 2·n²·D operations per head (paper and dense: twice that; 3.5 times
    that with backward) at the measured speed of matrix products.

    --out keeps a record, from which 'python -m docs.make' of a checkout makes docs/bench.md.
    """
    flags: dict[Mode, bool] = {"generate": generate, "train-step": train_step, "decode": decode, "all": everything}
    mode = bench_plan.chosen_mode(flags)
    bench_plan.check_options(context, mode)
    bench_plan.check_out(out)
    if mode == "all":
        bench_plan.run_all(out, wait_policy, threads, quick=quick)
        return
    bench_plan.apply_wait_policy(wait_policy)
    if avx2:
        bench_plan.apply_avx2()
    from resolvent.bench import use_threads

    use_threads(threads)
    plan = bench_plan.make_plan(mode, specs, n, preset, rounds, quick=quick)
    result: Report | DecodeReport | BenchRecord
    if mode == "operator":
        result = _operator(plan, against, backend, memory, shape=(batch or 1, heads, head_dim))
    elif mode == "decode":
        result = _decode(plan, shape=(batch or 1, heads, head_dim))
    else:
        result = _models(plan, batch, tokens, against=against != ["none"])
    _print(result, as_json=as_json)
    if plot is not None:
        from resolvent.report.figures import save

        say_written(save(_figure(result), plot))
    if out is not None:
        from resolvent.bench.record import BenchRecord, add_record

        add_record(result if isinstance(result, BenchRecord) else result.record(), out)
        say_written(out)


def _operator(
    plan: bench_plan.Plan, against: list[str] | None, backend: str, memory: bool, *, shape: tuple[int, int, int]
) -> Report:
    from resolvent.bench import bench

    batch, heads, head_dim = shape
    with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
        return bench(
            [pattern(spec) for spec in plan.patterns],
            plan.lengths,
            peers=[] if against == ["none"] else against or ["sdpa"],
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            rounds=plan.rounds,
            backend=backend,
            memory=memory,
            after_each=advance,
        )


def _decode(plan: bench_plan.Plan, *, shape: tuple[int, int, int]) -> DecodeReport:
    from resolvent.bench import bench_decode

    batch, heads, head_dim = shape
    with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
        return bench_decode(
            [pattern(spec) for spec in plan.patterns],
            plan.lengths,
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            rounds=plan.rounds,
            after_each=advance,
        )


def _models(plan: bench_plan.Plan, batch: int | None, tokens: int, *, against: bool) -> BenchRecord:
    from resolvent.bench import bench_generation, bench_training
    from resolvent.bench.generation import workloads
    from resolvent.bench.gpt2 import require_transformers

    patterns = [pattern(spec) for spec in plan.patterns]
    if plan.mode == "train-step":
        with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
            return bench_training(
                plan.preset,
                patterns,
                plan.lengths,
                batch=batch or 1,
                rounds=plan.rounds,
                against=against,
                after_each=advance,
            )
    if against:
        require_transformers()  # before anything else takes time
    batches = (1, 8) if batch is None else (batch,)
    total = (plan.rounds + 1) * len(workloads(batches, plan.lengths))
    with progress(plan.description, total) as advance:
        return bench_generation(
            plan.preset,
            patterns,
            plan.lengths,
            batches=batches,
            tokens=tokens,
            rounds=plan.rounds,
            against=against,
            after_each=advance,
        )


def _print(result: Report | DecodeReport | BenchRecord, *, as_json: bool) -> None:
    from resolvent.bench.record import BenchRecord
    from resolvent.bench.results import Report
    from resolvent.report import tables
    from resolvent.studies import render, speed

    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
        return
    console = Console()
    if isinstance(result, BenchRecord):
        for title, table in speed.tables(result):
            console.print(title, style="bold", highlight=False)
            console.print(render.terminal(table))
            console.print()
        console.print("\n".join(speed.notes(result)), markup=False, highlight=False, style="dim")
    elif isinstance(result, Report):
        for length in result.lengths:
            console.print(tables.speeds(result, length))
        if result.growth:
            console.print(tables.speed_growth(result))
        console.print(tables.speed_notes(result), markup=False, highlight=False, style="dim")
    else:
        for position in result.positions:
            console.print(tables.steps(result, position))


def _figure(result: Report | DecodeReport | BenchRecord) -> Figure:
    from resolvent.bench.record import BenchRecord
    from resolvent.bench.results import Report
    from resolvent.report import figures
    from resolvent.report.speed import panels_figure, record_panels

    if isinstance(result, Report):
        return figures.speed_figure(result)
    return panels_figure(record_panels(result if isinstance(result, BenchRecord) else result.record()))
