"""Commands about one run: train a model, evaluate it, generate text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resolvent.cli.display import RunDisplay
from resolvent.cli.evaluate import on_tasks, show
from resolvent.cli.models import RunFolder, TokenizerName
from resolvent.cli.run_name import default_folder
from resolvent.cli.session import Session
from resolvent.cli.settings import RunOptions
from resolvent.cli.shared import AsJson, app, parse_length, progress, say
from resolvent.errors import SettingError
from resolvent.rules import RULES
from resolvent.tasks import Text
from resolvent.train.config_file import ConfigFile
from resolvent.train.record import Record

if TYPE_CHECKING:
    from resolvent.text import Tokenizer

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=500 (repeatable)."),
]


@app.command("train")
def train_model(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="copy, recall, multihop, markov, or text with --corpus; settings may follow, as in markov:k=8; "
            "optional if --config names it.",
        ),
    ] = None,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file of settings, such as the config.toml of a run; options override it.",
        ),
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern", help="Pattern of every layer; repeat for one per layer.  \\[default: exponential+cache]"
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help=f"How A and B are parameterized: {', '.join(RULES)}, with options.  \\[default: softmax]"),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Initial settings. Tasks: smoke, small \\[default], large, paper; markov: those of 'study "
            "incontext'. Text: quick \\[default], laptop, gpt2-125m, -355m, -775m (the paper's to the letter), "
            "recommended-125m, -355m, -775m."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for weights and data.  \\[default: 0]")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run: record, metrics, checkpoint, model.  \\[default: runs/NAME]"),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Fine-tune: start from the weights, patterns and sizes of this run, model or checkpoint, with a new "
            "optimizer.",
        ),
    ] = None,
    changes: Changes = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also log metrics to tensorboard, trackio or wandb, if installed (repeatable)."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Train even if it takes more than a day, or more memory than is free.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one model. If interrupted, rerun the same command to resume, exactly.

    Ctrl-C and SIGTERM finish the step, write a checkpoint and print the command
    that resumes; twice, they stop at once. The same command with a larger
    train.steps extends a run: from there on the learning rate is that of the
    longer run.

    Example: resolvent train text --corpus out/text/wikitext2-bytes --pattern quadratic+cache --out out/first
    """
    from resolvent.train.processes import process_rank
    from resolvent.train.trackers import Tracking

    options = RunOptions(task, patterns or (), rule, corpus, preset, seed, changes or (), start)
    file = ConfigFile(Path(), None, {}) if config_file is None else ConfigFile.read(config_file)
    config = options.config(file)
    if out is None:
        out, reason = default_folder(config, options.preset_name(file))
        say(f"{reason}: this one is {out}" if reason else f"run: {out}")
    session = Session(config, out, yes=yes)
    finished = session.is_finished()
    first = process_rank() == 0  # of several processes, one shows and prints
    with Tracking((track or ()) if first else (), out, config) as tracking, RunDisplay() as display:
        record = session.train(display, tracking.write)
    if not first:
        return
    if as_json:
        print(json.dumps(record.to_dict(), indent=2))
    else:
        print(f"{config.model.pattern_label} on {config.task.name}: {summary(record)}")
        if isinstance(config.task, Text):
            print(_utilization(record))
    say(f"{out} was finished before: nothing was trained" if finished else f"finished: {out}")


def summary(record: Record) -> str:
    """A record in one line."""
    speed = f"{record.tokens_per_second:,.0f} tokens/s"
    return f"{record.evaluation}, after {record.steps:,} steps in {record.seconds:.0f} s ({speed})"


def _utilization(record: Record) -> str:
    """The multiply-adds that the model needs, forward and twice that backward, against matrix products measured now."""
    from resolvent.bench.machine import measure_machine
    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    config = record.config
    madds = LanguageModel.shape_only(config.model).profile(config.task.longest).madds_per_token
    speed = 6 * madds * record.tokens_per_second / 1e9
    if default_device().type != "cpu":  # the CPU is what is measured
        return f"{speed:,.1f} GFLOP/s"
    peak = measure_machine(config.train.threads).matmul_gflops
    return f"{speed:,.1f} GFLOP/s, {100 * speed / peak:.0f} % of this machine's matmul peak ({peak:,.0f} GFLOP/s)"


@app.command("evaluate")
def evaluate_model(
    run: RunFolder,
    *,
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text.")] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(help="Instead of a text: YAML file of a task of lm-eval, with its data beside it (repeatable)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task.  \\[default: all]")] = None,
    tokenizer: TokenizerName = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    context: Annotated[
        int | None,
        typer.Option(
            parser=parse_length, metavar="TOKENS", help="Window length, such as 512 or 2k.  \\[default: as trained]"
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            parser=parse_length,
            metavar="TOKENS",
            help="Distance between windows; the last STRIDE targets of each are scored.  \\[default: no overlap]",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Windows per batch.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Measure the perplexity and bits per byte of a model on a text, or its metrics on tasks of lm-eval.

    Tasks are local files, and nothing is downloaded. `resolvent long-context`
    writes some; the model may then be a folder of transformers, too.
    """
    if (corpus is None) == (not tasks):
        raise SettingError("expected --corpus, the folder of a prepared text, or --tasks, YAML files; and not both.")
    if corpus is None:
        results = on_tasks(run, tasks or [], tokenizer, limit, batch)
        print(json.dumps(results, indent=2)) if as_json else show(results)
        return
    from resolvent.train.model_source import open_model
    from resolvent.train.perplexity import on_text
    from resolvent.train.processes import default_device

    trained = open_model(run)
    text = Text(str(corpus), context or (Text.context if trained.text is None else trained.text.context))
    trained.check_tokenizer(text.opened.tokenizer)
    model = trained.load().to(default_device())
    with progress("evaluating", len(text.windows(batch, split, stride))) as advance:
        evaluation = on_text(model, text, batch, split=split, stride=stride, precision=trained.precision,
                             advance=advance)  # fmt: skip
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        windows = "windows that do not overlap" if stride is None else f"windows {stride:,} apart"
        print(f"perplexity {evaluation.perplexity:.3f}, {evaluation.bits_per_byte:.4f} bits per byte, "
              f"{evaluation.tokens:,} tokens of {split}, contexts of {text.context:,}, {windows}")  # fmt: skip


@app.command("generate")
def generate_text(
    run: RunFolder,
    *,
    prompt: Annotated[str, typer.Option(help="Beginning of the text.")] = "The ",
    tokens: Annotated[
        int, typer.Option(parser=parse_length, metavar="TOKENS", help="Tokens to generate, such as 200 or 1k.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 always takes the most likely token.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the smallest set of tokens with total probability p.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for sampling.")] = 0,
    tokenizer: TokenizerName = None,
    as_json: AsJson = False,
) -> None:
    """Generate text from a prompt."""
    from resolvent.train.model_source import open_model
    from resolvent.train.processes import default_device

    trained = open_model(run)
    vocabulary = trained.tokenizer(tokenizer)
    model = trained.load().to(default_device())
    encoded = vocabulary.encode(prompt).tolist()
    if not encoded:
        raise SettingError("expected a prompt of at least one character.")
    if not as_json:
        print(prompt, end="", flush=True)
    begin = time.perf_counter()
    stream = model.stream([encoded], tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                          stop=vocabulary.end_of_text)  # fmt: skip
    generated = _printed((int(token or 0) for [token] in stream), vocabulary, quiet=as_json)
    seconds = time.perf_counter() - begin
    cache = model.make_cache(1, len(encoded) + tokens).nbytes
    if as_json:
        print(json.dumps({"prompt": prompt, "text": vocabulary.decode(generated), "tokens": len(generated),
                          "seconds": seconds, "cache_bytes": cache}, indent=2))  # fmt: skip
    else:
        speed = f"{len(generated) / seconds:,.0f} tokens/s"
        print(f"{len(generated):,} tokens, {speed}, cache of {cache:,} bytes", file=sys.stderr)


def _printed(tokens: Iterable[int], vocabulary: Tokenizer, *, quiet: bool) -> list[int]:
    """All tokens, printed as they come unless quiet. A character may take several tokens."""
    generated: list[int] = []
    shown = ""
    for token in tokens:
        generated.append(token)
        text = vocabulary.decode(generated)
        if not quiet and not text.endswith("\ufffd"):
            print(text[len(shown) :], end="", flush=True)
            shown = text
    if not quiet:
        print(vocabulary.decode(generated)[len(shown) :])
    return generated
