"""Commands about one run: train a model, evaluate it, generate text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resolvent.cli.display import RunDisplay
from resolvent.cli.models import RunFolder, TokenizerName
from resolvent.cli.settings import RunOptions
from resolvent.cli.shared import AsJson, app, parse_length, progress
from resolvent.errors import SettingError
from resolvent.rules import RULES
from resolvent.tasks import Text
from resolvent.train.config_file import ConfigFile
from resolvent.train.record import FILE, Record

if TYPE_CHECKING:
    from resolvent.text import Tokenizer
    from resolvent.train import Progress, RunConfig
    from resolvent.train.trackers import Tracking

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=500 (repeatable)."),
]


@app.command("train")
def train_model(
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="copy, recall, multihop, or text with --corpus; may stand in --config."),
    ] = None,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file of settings, such as the config.toml of a run; options stand over it.",
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
            help="Initial settings. Tasks: smoke, small \\[default], large, paper. Text: quick \\[default], laptop, "
            "gpt2-125m, -355m, -775m (the paper's to the letter), recommended-125m, -355m, -775m."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for weights and data.  \\[default: 0]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run: record, metrics, checkpoint, model.")] = None,
    changes: Changes = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also hand metrics to tensorboard, trackio or wandb, if installed (repeatable)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train one model. If interrupted, rerun the same command to resume from the last checkpoint, exactly.

    Example: resolvent train text --corpus out/text/wikitext2-bytes --pattern quadratic+cache --out out/first
    """
    from resolvent.train import train
    from resolvent.train.processes import process_rank
    from resolvent.train.trackers import Tracking

    options = RunOptions(task, patterns or (), rule, corpus, preset, seed, changes or ())
    config = options.config(None if config_file is None else ConfigFile.read(config_file))
    first, finished = process_rank() == 0, out is not None and (out / FILE).exists()
    plan = _plan(config)
    if plan and first:
        print(plan, file=sys.stderr)
    with Tracking((track or ()) if first else (), out, config) as tracking, RunDisplay() as display:
        record = train(config, out, partial(_show, display, tracking), display.evaluation)
    if not first:  # of several processes, one prints
        return
    if as_json:
        print(json.dumps(record.to_dict(), indent=2))
    else:
        print(f"{config.model.pattern_label} on {config.task.name}: {summary(record)}")
        if plan:
            print(_utilization(record))
    if out is not None:
        print(f"{out} was finished before: nothing was trained" if finished else f"finished: {out}", file=sys.stderr)


def _show(display: RunDisplay, tracking: Tracking, p: Progress) -> None:
    display.step(p)
    tracking.write(p)


def _plan(config: RunConfig) -> str:
    """How large the model is, and how much of the text it will read; empty for tasks made on the fly."""
    from resolvent.model import LanguageModel

    settings, length = config.train, config.task.longest
    tokens = settings.batch * length
    epochs = config.task.epochs(settings.steps * tokens)
    if epochs is None:
        return ""
    return (
        f"{LanguageModel.shape_only(config.model).parameter_count():,} parameters; {settings.steps:,} steps of "
        f"{settings.batch} × {length:,} = {tokens:,} tokens, {epochs:.2f} epochs"
    )


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
    corpus: Annotated[Path, typer.Option(help="Folder of a prepared text.")],
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
    """Measure the perplexity and bits per byte of a model on a text."""
    from resolvent.train.perplexity import on_text
    from resolvent.train.trained import load_trained

    trained = load_trained(run)
    text = Text(str(corpus), context or (Text.context if trained.text is None else trained.text.context))
    trained.check_tokenizer(text.opened.tokenizer)
    with progress("evaluating", len(text.windows(batch, split, stride))) as advance:
        evaluation = on_text(trained.model, text, batch, split=split, stride=stride, precision=trained.precision,
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
    from resolvent.train.trained import load_trained

    trained = load_trained(run)
    model, vocabulary = trained.model, trained.tokenizer(tokenizer)
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
