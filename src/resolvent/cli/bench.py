"""Commands that benchmark: the operator, decoding, generation and training steps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from resolvent.cli import bench_plan
from resolvent.cli.bench_plan import GPT2, MODELS, PLANS, QUICK
from resolvent.cli.shared import AsJson, HeadDim, Heads, app, progress, say_written
from resolvent.errors import SettingError
from resolvent.files import require_writable
from resolvent.patterns import pattern

if TYPE_CHECKING:
    from resolvent.bench.record import BenchRecord

bench = typer.Typer(
    help="Time the operator or whole models against peers, and check the kernels on a GPU.\n\n"
    "All cases are interleaved in one process, so that other load on the machine affects all alike; medians are "
    "compared. Nothing is set in the environment: times are those that a plain script gets.",
    no_args_is_help=True,
)
app.add_typer(bench, name="bench")

Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERN", help="Patterns to time.", show_default="the paper's sparse recurrences"),
]
ModelPatterns = Annotated[
    list[str] | None, typer.Argument(metavar="PATTERN", help="Patterns to time.", show_default=" ".join(MODELS))
]
_lengths = partial(
    typer.Option, "--n", "-n", metavar="N", help="Lengths in tokens, such as 4096 or 16,1k,16k (repeatable)."
)
Lengths = Annotated[list[str] | None, _lengths(show_default="4096")]
GenerateLengths = Annotated[list[str] | None, _lengths(show_default="16,1k,16k")]
TrainLengths = Annotated[list[str] | None, _lengths(show_default="256,1k")]
Quick = Annotated[bool, typer.Option("--quick", help="Small shapes and few rounds: less than a minute.")]
Batch = Annotated[int, typer.Option(help="Batch size.")]
Preset = Annotated[str | None, typer.Option(help="Shape of the models: tiny, gpt2-125m, …", show_default=GPT2)]
Rounds = Annotated[int | None, typer.Option(help="Timed runs of each case.", show_default="7")]
ModelRounds = Annotated[int | None, typer.Option(help="Timed runs of each case.", show_default="5")]
AgainstGPT2 = Annotated[
    Literal["transformers", "none"], typer.Option(help="Compare with transformers' GPT2LMHeadModel in the same shape.")
]
Threads = Annotated[int | None, typer.Option(help="Number of threads.", show_default="torch's default")]
WaitPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="plain|passive|active",
        help="Run in a process with OMP_WAIT_POLICY set to this, or not set (plain).",
        show_default="the environment as it is",
    ),
]
AVX2 = Annotated[
    bool, typer.Option("--avx2", help="Run in a process in which neither torch nor the kernels use AVX-512 (x86-64).")
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure: times against n, a panel for each workload.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Add the record to this file (.jsonl); it replaces an earlier run of the same kind and shape."),
]


@bench.command("operator")
def bench_operator(
    specs: Patterns = None,
    *,
    n: Lengths = None,
    quick: Quick = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Peer to compare with: sdpa, flex, paper or scipy (repeatable), or none.", show_default="sdpa"
        ),
    ] = None,
    batch: Batch = 1,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rounds: Rounds = None,
    backend: Annotated[str, typer.Option(help="Backend of the operator, or auto.")] = "auto",
    memory: Annotated[bool, typer.Option("--memory", help="Also measure peak memory (Linux only).")] = False,
    threads: Threads = None,
    wait_policy: WaitPolicy = None,
    avx2: AVX2 = False,
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time the operator, forward and with backward, against peers and the limits of the machine.

    Peers: sdpa is torch's causal attention; flex is FlexAttention on the
    pattern's A alone (compiled, which needs a C++ compiler; forward only on a
    CPU); paper is dense masked matrices and a triangular solve; scipy is SciPy's
    sparse triangular solve with precomputed coefficients (one head is timed and
    multiplied; forward only).

    'of bound': the share of the machine's limit that is reached, that is the time
    to load keys and values (ka, x, kb, y) of every position read, at the measured
    L2 speed (3 times that with backward), divided by the measured time. For sdpa,
    paper and patterns that read every earlier token, the limit is the time for
    2·n²·D operations per head (paper and dense: twice that; 3.5 times that with
    backward) at the measured speed of matrix products.
    """
    plan = (QUICK if quick else PLANS)["operator"].changed(specs, n, rounds)
    _start(out, wait_policy, threads, avx2=avx2)
    from resolvent.bench import bench

    with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
        record = bench(
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
    _finish(record, plot, out, as_json=as_json)


@bench.command("decode")
def bench_decode(
    specs: Patterns = None,
    *,
    n: Lengths = None,
    quick: Quick = False,
    batch: Batch = 1,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rounds: Rounds = None,
    threads: Threads = None,
    wait_policy: WaitPolicy = None,
    avx2: AVX2 = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time decoding one token with the operator, after n tokens of context, against torch's attention."""
    plan = (QUICK if quick else PLANS)["decode"].changed(specs, n, rounds)
    _start(out, wait_policy, threads, avx2=avx2)
    from resolvent.bench import bench_decode

    with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
        record = bench_decode(
            [pattern(spec) for spec in plan.patterns],
            plan.lengths,
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            rounds=plan.rounds,
            after_each=advance,
        )
    _finish(record, None, out, as_json=as_json)


@bench.command("generate")
def bench_generate(
    specs: ModelPatterns = None,
    *,
    n: GenerateLengths = None,
    quick: Quick = False,
    preset: Preset = None,
    against: AgainstGPT2 = "transformers",
    batch: Annotated[int | None, typer.Option(help="Batch size.", show_default="1 and 8")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate in each round.")] = 8,
    rounds: ModelRounds = None,
    threads: Threads = None,
    wait_policy: WaitPolicy = None,
    avx2: AVX2 = False,
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time generation by whole models after n tokens, against GPT-2 with its dynamic and its static cache."""
    plan = (QUICK if quick else PLANS)["generate"].changed(specs, n, rounds, preset)
    _start(out, wait_policy, threads, avx2=avx2)
    from resolvent.bench import bench_generation
    from resolvent.bench.generation import workloads
    from resolvent.bench.gpt2 import require_transformers

    if against == "transformers":
        require_transformers()  # before anything else takes time
    batches = (1, 8) if batch is None else (batch,)
    with progress(plan.description, (plan.rounds + 1) * len(workloads(batches, plan.lengths))) as advance:
        record = bench_generation(
            plan.preset,
            [pattern(spec) for spec in plan.patterns],
            plan.lengths,
            batches=batches,
            tokens=tokens,
            rounds=plan.rounds,
            against=against == "transformers",
            after_each=advance,
        )
    _finish(record, plot, out, as_json=as_json)


@bench.command("train-step")
def bench_train_step(
    specs: ModelPatterns = None,
    *,
    n: TrainLengths = None,
    quick: Quick = False,
    preset: Preset = None,
    against: AgainstGPT2 = "transformers",
    batch: Batch = 1,
    rounds: ModelRounds = None,
    threads: Threads = None,
    wait_policy: WaitPolicy = None,
    avx2: AVX2 = False,
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps of whole models, and their memory, against GPT-2 and the same model with attention."""
    plan = (QUICK if quick else PLANS)["train-step"].changed(specs, n, rounds, preset)
    _start(out, wait_policy, threads, avx2=avx2)
    from resolvent.bench import bench_training

    with progress(plan.description, (plan.rounds + 1) * len(plan.lengths)) as advance:
        record = bench_training(
            plan.preset,
            [pattern(spec) for spec in plan.patterns],
            plan.lengths,
            batch=batch,
            rounds=plan.rounds,
            against=against == "transformers",
            after_each=advance,
        )
    _finish(record, plot, out, as_json=as_json)


@bench.command("all")
def bench_all(
    out: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="File of records.")],
    *,
    quick: Quick = False,
    threads: Threads = None,
    wait_policy: WaitPolicy = None,
) -> None:
    """Run everything that docs/bench.md shows, each benchmark in a process of its own, and keep the records.

    'python -m docs.make docs/bench.md' of a checkout makes the page from them.
    """
    _check_out(out)
    bench_plan.run_all(out, wait_policy, threads, quick=quick)


def _start(out: Path | None, wait_policy: str | None, threads: int | None, *, avx2: bool) -> None:
    """Settings of the process, or the same command in another one that has them."""
    _check_out(out)
    bench_plan.apply_wait_policy(wait_policy)
    if avx2:
        bench_plan.apply_avx2()
    from resolvent.bench import use_threads

    use_threads(threads)


def _check_out(out: Path | None) -> None:
    """Before anything is measured: records that cannot be kept, or added to others, would be lost."""
    if out is None:
        return
    if out.suffix != ".jsonl":
        raise SettingError(f"expected a file of records that ends in .jsonl, got '{out}'.")
    require_writable(out.parent)
    if out.exists():
        from resolvent.bench.record import read_bench_records

        read_bench_records(out)


def _finish(record: BenchRecord, plot: Path | None, out: Path | None, *, as_json: bool) -> None:
    print(json.dumps(record.to_dict(), indent=2)) if as_json else _print(record)
    if plot is not None:
        from resolvent.report.figures import panels_figure, record_panels, save

        say_written(save(panels_figure(record_panels(record)), plot))
    if out is not None:
        from resolvent.bench.record import add_record

        add_record(record, out)
        say_written(out)


def _print(record: BenchRecord) -> None:
    from resolvent.studies import render, speed

    console = Console()
    for title, table in speed.tables(record):
        console.print(title, style="bold", highlight=False)
        console.print(render.terminal(table))
        console.print()
    if (growth := speed.growth(record)) is not None:
        console.print(render.terminal(growth))
        console.print()
    console.print("\n".join(speed.notes(record)), markup=False, highlight=False, style="dim")
