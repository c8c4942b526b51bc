"""Commands about one run: train a model, evaluate it, generate text."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resolvent.cli.display import StatusLine
from resolvent.cli.run_name import default_folder
from resolvent.cli.runs import (
    RunFolder,
    TokenizerName,
    check_tokenizer,
    load_model,
    record_of,
    tokenizer_of,
    trained_text,
)
from resolvent.cli.session import Session
from resolvent.cli.shared import AsJson, Rule, app, parse_length, progress, say, say_written
from resolvent.errors import SettingError, closest
from resolvent.tasks import TASKS, Text
from resolvent.train.record import Record

if TYPE_CHECKING:
    from resolvent.text import Tokenizer
    from resolvent.train import Progress, RunConfig
    from resolvent.train.board import Board

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=500 (repeatable)."),
]


@app.command("train")
def train_model(
    task: Annotated[str, typer.Argument(metavar="TASK", help="copy, recall, multihop, or text with --corpus.")],
    *,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern", help="Pattern of every layer; repeat for one per layer.  \\[default: exponential+cache]"
        ),
    ] = None,
    rule: Rule = "softmax",
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Initial settings. Tasks: smoke, small \\[default], large, paper. Text: quick \\[default], laptop, "
            "gpt2-125m, -355m, -775m (the paper's to the letter), recommended-125m, -355m, -775m."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for weights and data.")] = 0,
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
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write metrics for TensorBoard into this folder.")
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
    from resolvent.train.board import Board
    from resolvent.train.processes import process_rank

    config = _config(task, (patterns or ["exponential+cache"])[0], corpus, preset, seed)
    config = _started(config, start).changed([*_overrides(patterns or [], rule, start), *(changes or [])]).prepared()
    if out is None:
        out, reason = default_folder(config, preset or ("quick" if task == Text.name else "small"))
        say(f"{reason}: this one is {out}" if reason else f"run: {out}")
    board = Board(tensorboard) if tensorboard is not None and process_rank() == 0 else None
    line = StatusLine()
    record = Session(config, out, line.end, yes=yes).train(partial(_show, line, board))
    if process_rank() != 0:  # of several processes, one prints
        return
    if as_json:
        print(json.dumps(record.to_dict(), indent=2))
    else:
        print(f"{config.model.pattern_label} on {task}: {summary(record)}")
        if isinstance(config.task, Text):
            print(_utilization(record))
    say_written(out)


def _show(line: StatusLine, board: Board | None, p: Progress) -> None:
    value = "" if p.value is None else f"  {p.measure} {p.value:.3f}"
    speed = f"{p.tokens_per_second:,.0f} tokens/s"
    line.show(f"step {p.step:,}/{p.steps:,}  loss {p.loss:.3f}{value}  {speed}", p.step / p.steps)
    if board is not None:
        board.write(p)


def _config(task: str, pattern: str, corpus: Path | None, preset: str | None, seed: int) -> RunConfig:
    """The preset's settings for a task."""
    from resolvent.studies import table1
    from resolvent.studies.language import presets

    if task not in TASKS:
        raise SettingError(f"unknown task '{task}': expected {', '.join(TASKS)}.{closest(task, TASKS)}")
    if task != Text.name:
        if corpus is not None:
            raise SettingError(f"{task} makes its own sequences: --corpus goes with 'resolvent train text'.")
        return table1.run_config(table1.preset_of(preset or "small", [task]), task, pattern, seed)
    if corpus is None:
        raise SettingError("expected --corpus, the folder of a prepared text: see 'resolvent data prepare --help'.")
    size = presets.preset_of(preset or "quick")
    return presets.run_config(size, Text(str(corpus), size.context).prepared(), pattern, seed)


def _started(config: RunConfig, start: Path | None) -> RunConfig:
    """With the model that training starts from, if there is one."""
    if start is None:
        return config
    from resolvent.train.model_source import open_model

    if isinstance(config.task, Text):
        check_tokenizer(start, config.task.tokenizer)
    settings = dataclasses.replace(config.train, start=str(start))
    return dataclasses.replace(config, model=open_model(start).config, train=settings)


def _overrides(patterns: Sequence[str], rule: str, start: Path | None) -> list[str]:
    """Settings that stand for options: one pattern per layer, a rule for all layers."""
    if len(patterns) > 1:
        per_layer = [f"model.pattern={json.dumps(patterns)}"]
    else:  # of a model to start from; otherwise a preset may have it in some layers alone
        per_layer = [f"model.pattern={pattern}" for pattern in patterns if start is not None]
    return per_layer + ([f"model.rule={rule}"] if rule != "softmax" else [])


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

    model, record = load_model(run), record_of(run)
    trained = trained_text(run)
    text = Text(str(corpus), context or (Text.context if trained is None else trained.context))
    check_tokenizer(run, text.opened.tokenizer)
    precision = "float32" if record is None else record.config.train.precision
    with progress("evaluating", len(text.windows(batch, split, stride))) as advance:
        evaluation = on_text(model, text, batch, split=split, stride=stride, precision=precision, advance=advance)
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
    model = load_model(run)
    vocabulary = tokenizer_of(run, model.vocab_size, tokenizer)
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
