"""The command line: a thin layer that reads arguments, calls the library and prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import resolvent
from resolvent.analysis.coefficients import RULES
from resolvent.analysis.congestion import Effort
from resolvent.analysis.profile import Profile, analyze
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES, pattern

SPARSE_STRUCTURES = [spec for spec in PAPER_STRUCTURES if spec not in ("attention", "local:8", "dense")]

app = typer.Typer(
    name="resolvent",
    help="Causal token mixers y = (I - B)^-1 A x: choose which past positions a token reads, see what that costs and "
    "what it can express.\n\nStart with [bold]resolvent patterns[/bold], then [bold]resolvent analyze "
    "exponential+cache[/bold].",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
)

Spec = Annotated[
    str, typer.Argument(metavar="PATTERN", help="For example exponential+cache; see 'resolvent patterns'.")
]
Length = Annotated[int, typer.Option("--n", "-n", help="Sequence length in tokens.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
HowHard = Annotated[
    Effort,
    typer.Option(
        "--effort",
        help="How hard to look for routings of low congestion: quick (one pass), search (rip-up-and-reroute for "
        "moderate n), exact (an integer program for small n; needs SciPy).",
    ),
]
Heads = Annotated[int, typer.Option(help="Heads of the layer whose cost is given.")]
Rule = Annotated[
    str, typer.Option("--coefficients", help=f"How the layer makes its numbers: {', '.join(RULES)}, with options.")
]
HeadDim = Annotated[int, typer.Option(help="Dimension of each head.")]


@app.command("patterns")
def list_patterns(n: Length = 1024, as_json: AsJson = False) -> None:
    """List the pattern families, each with a small picture and its cost."""
    if as_json:
        print(json.dumps({"families": FAMILIES, "modifiers": MODIFIERS, "paper": PAPER_STRUCTURES}, indent=2))
        return
    from resolvent.report import tables

    Console().print(tables.families(n))


@app.command("analyze")
def analyze_pattern(
    spec: Spec,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a page of figures: mask, cache, hops, load, growth.")] = None,
    copy_routing: Annotated[
        bool, typer.Option("--copy-routing", help="Also give the routing that copies n tokens: drawn, or in the JSON.")
    ] = False,
    effort: HowHard = "search",
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rule: Rule = "softmax",
) -> None:
    """Everything that can be proved about one pattern at length n.

    Hops count the steps from an input to a later output. Congestion is the number of tokens that must share one state
    when n tokens are copied n places on; it comes as proven bounds.
    """
    with progress(f"analyzing {spec} on {n:,} tokens", 1):
        profile = analyze(spec, n, effort=effort, heads=heads, head_dim=head_dim, rule=rule)
    routing = profile.congestion.routing
    if as_json:
        content = profile.to_dict()
        if copy_routing:
            content["routing"] = None if routing is None else [path.tolist() for path in routing]
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(profile)
        if copy_routing:
            print()
            print(_routing_text(profile))
    if plot is not None:
        from resolvent.report import figures

        _say_written(figures.save(figures.profile_figure(profile), plot))


@app.command("draw")
def draw_pattern(
    spec: Spec,
    n: Length = 16,
    png: Annotated[Path | None, typer.Option(help="Write the mask as a picture instead of text.")] = None,
) -> None:
    """Draw who reads whom: a row is a token, a column a position it may read."""
    chosen = pattern(spec)
    if png is None:
        print(chosen.draw(n))
    else:
        from resolvent.report import figures

        _say_written(figures.save(figures.mask_figure(chosen, n), png))


@app.command("compare")
def compare_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...", help="Patterns to compare; the paper's nine structures if none is named."
        ),
    ] = None,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write growth curves and the cache–congestion trade-off.")] = None,
    pages: Annotated[Path | None, typer.Option(help="Write a page of figures per pattern into this folder.")] = None,
    effort: HowHard = "search",
) -> None:
    """Compare patterns: cost per token, cache, hops and congestion (the theory half of the paper's Table 1)."""
    chosen = [pattern(spec) for spec in specs or PAPER_STRUCTURES]
    profiles = []
    with progress(f"comparing {len(chosen)} patterns on {n:,} tokens", len(chosen)) as advance:
        for p in chosen:
            profiles.append(analyze(p, n, effort=effort))
            advance()
    if as_json:
        print(json.dumps([profile.to_dict() for profile in profiles], indent=2, ensure_ascii=False))
    else:
        from resolvent.report import tables

        Console().print(tables.comparison(profiles))
    if plot is not None:
        from resolvent.report import figures

        _say_written(figures.save(figures.comparison_figure(profiles), plot))
    if pages is not None:
        from resolvent.report import figures

        with progress("drawing figures", len(profiles)) as advance:
            for profile in profiles:
                name = "".join(c if c.isalnum() or c in "+-" else "_" for c in str(profile.pattern))
                figures.save(figures.profile_figure(profile), pages / f"{name}.png")
                advance()
        _say_written(pages)


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

        _say_written(figures.save(figures.speed_figure(report), plot))


@app.command("model")
def describe_model(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="tiny, synthetic-4m, gpt2-125m, gpt2-355m, gpt2-775m.")],
    specs: Annotated[
        list[str] | None, typer.Option("--pattern", help="Pattern of every layer; repeat it for one per layer.")
    ] = None,
    rule: Rule = "softmax",
    n: Length = 1024,
    save: Annotated[Path | None, typer.Option(help="Write the model, untrained, into this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights it starts with.")] = 0,
    train_step: Annotated[
        bool, typer.Option("--train-step", help="Time one step of training on n tokens, and the same with attention.")
    ] = False,
    decode: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Decode so many tokens one by one: time and memory over them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, cost, cache and hops of a whole model, without training it.

    The gpt2 presets are the paper's models: GPT-2's shape with rotary positions.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.model import LanguageModel, preset

    changes: dict[str, Any] = {"coefficients": rule}
    if specs:
        changes["pattern"] = specs if len(specs) > 1 else specs[0]
    config = preset(name, **changes)
    model = LanguageModel.seeded(config, seed) if save else LanguageModel.shape_only(config)
    profile = model.profile(n)
    content: dict[str, Any] = {"preset": name, "config": config.to_dict(), "profile": profile.to_dict()}
    text = [f"{name} {profile}"]
    if train_step:
        from resolvent.bench.models import training_step
        from resolvent.report import tables

        with progress(f"one step of training on {n:,} tokens", 2) as advance:
            steps = []
            for each in (config, preset(name, pattern="attention")):
                steps.append(training_step(each, n, seed).to_dict())
                advance()
        content["training_steps"] = steps
        text += [tables.training_step(step) for step in steps]
    if decode is not None:
        from resolvent.bench.models import long_text
        from resolvent.report import tables

        with progress(f"decoding {decode:,} tokens", decode) as advance:
            found = long_text(config, decode, seed, advance).to_dict()
        content["decode"] = found
        text.append(tables.long_text(found))
    print(json.dumps(content, indent=2) if as_json else "\n".join(text))
    if save is not None:
        _say_written(model.save(save))


@app.command("inspect")
def inspect_model(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A model's folder, as `save` writes it.")],
    text: Annotated[
        str, typer.Option(help="What the model reads, as bytes (vocabulary of 256).")
    ] = "to be or not to be",
    tokens: Annotated[str | None, typer.Option(help="Token numbers instead of a text: 17,4,256.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the figure, from 0.")] = 0,
    head: Annotated[int, typer.Option(help="Head of the figure, from 0.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of A, B and T, up to 4,096 tokens.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a model while it reads a text: gates, row sums, hops, and a figure of A, B and T.

    |T1 - 1|: how far the rows of (I - B)^-1 A are from summing to one. ‖(I-B)⁻¹‖: how much feedback can amplify.
    Fed back: how often, on average, what reaches a token was fed back on its way.
    """
    from resolvent.model.inspection import inspect
    from resolvent.report import figures, mixing

    if tokens is not None and not all(part.strip().isdigit() for part in tokens.split(",")):
        raise ValueError(f"expected --tokens as whole numbers such as 17,4,256, got '{tokens}'.")
    view = inspect(checkpoint, text if tokens is None else [int(t) for t in tokens.split(",")], layer, head)
    if as_json:
        print(json.dumps([found.to_dict() for found in view.layers], indent=2))
    else:
        Console().print(mixing.diagnostics_table([found.to_dict() for found in view.layers]))
    if plot is not None:
        figure = mixing.mixing_figure(*view.matrices(), view.spectrum, view.tokens, view.title)
        _say_written(figures.save(figure, plot))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(f"resolvent {resolvent.__version__}")
        raise typer.Exit


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, for people only; it vanishes when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total if total > 1 else None)
        yield lambda: bar.advance(task)


def _print_steps(report: dict[str, Any], as_json: bool) -> None:
    from resolvent.report import tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    for position in report["positions"]:
        Console().print(tables.steps(report, position))


def _routing_text(profile: Profile) -> str:
    routing = profile.congestion.routing
    if routing is None:
        return f"no routing: {profile.congestion.upper_by}."
    if routing.n <= 64:
        return routing.draw()
    loads, hops = routing.loads(), len(routing.nodes) / routing.n - 1
    return (
        f"routing of {routing.n:,} paths: {hops:.2f} hops on average, load {loads.mean():.2f} on average and "
        f"{loads.max()} at most. It is drawn for n ≤ 64; --json lists the paths, --plot shows the loads."
    )


def _print_speeds(report: dict[str, Any]) -> None:
    from resolvent.report import tables

    console = Console()
    for length in report["lengths"]:
        console.print(tables.speeds(report, length))
    if report["growth"]:
        console.print(tables.speed_growth(report))
    console.print(tables.speed_notes(report), markup=False, highlight=False, style="dim")


def _say_written(path: Path) -> None:
    """On standard error, so that standard output stays the result alone."""
    print(f"written: {path}", file=sys.stderr)


def main() -> None:
    """Run the command line; what is wrong with the arguments is said in one line, without a traceback."""
    try:
        app()
    except (ValueError, ImportError, OSError) as error:
        console = Console(stderr=True, soft_wrap=True)
        console.print("error:", style="bold red", end=" ")
        console.print(str(error), markup=False, highlight=False)
        sys.exit(2)
