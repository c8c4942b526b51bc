"""Commands on models that are trained: generate text, evaluate, and convert for transformers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from resolvent.batch import IGNORED
from resolvent.cli.shared import AsJson, app, parse_length, progress, say_written
from resolvent.errors import SettingError
from resolvent.tasks import Synthetic, Text
from resolvent.tasks.synthetic import HELD_OUT

if TYPE_CHECKING:
    from resolvent.hf.evaluate import Results
    from resolvent.model import LanguageModel
    from resolvent.text import Tokenizer

_SHOWN_SIZE = 7  # symbols, or pairs, of the sequence that `generate` shows of a task

RunFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model, or a checkpoint of a run.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="gpt2, bytes or the path of a tokenizer.json.  \\[default: that of the text it was trained on]",
    ),
]


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
    """Generate text from a prompt; for a run on copy, recall or multihop, show its answers to a sequence."""
    from resolvent.train.model_source import open_model
    from resolvent.train.processes import default_device

    trained = open_model(run)
    task = None if trained.run is None else trained.run.task
    if isinstance(task, Synthetic) and tokenizer is None:
        _show_answers(trained.load().to(default_device()), task, as_json=as_json)
        return
    vocabulary = trained.tokenizer(tokenizer)
    model = trained.load().to(default_device())
    encoded = vocabulary.encode(prompt).tolist()
    if not encoded:
        raise SettingError("expected a prompt of at least one character.")
    begin = time.perf_counter()
    stream = model.stream(
        [encoded], tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=vocabulary.end_of_text
    )
    if not as_json:  # arguments have been checked by now
        print(prompt, end="", flush=True)
    generated = _printed((int(token or 0) for [token] in stream), vocabulary, quiet=as_json)
    seconds = time.perf_counter() - begin
    cache = model.make_cache(1, len(encoded) + tokens).nbytes
    if as_json:
        print(
            json.dumps(
                {
                    "prompt": prompt,
                    "text": vocabulary.decode(generated),
                    "tokens": len(generated),
                    "seconds": seconds,
                    "cache_bytes": cache,
                },
                indent=2,
            )
        )
    else:
        speed = f"{len(generated) / seconds:,.0f} tokens/s"
        print(f"{len(generated):,} tokens, {speed}, cache of {cache:,} bytes", file=sys.stderr)


def _show_answers(model: LanguageModel, task: Synthetic, *, as_json: bool) -> None:
    """A sequence that was not trained on, of a size that fits a terminal, with the model's answers."""
    from resolvent.train.evaluate import answers

    least, most = task.sizes(1)
    batch = task.batch(HELD_OUT, 0, 1, size=max(least, min(most, _SHOWN_SIZE)))
    given, scored = answers(model, batch), batch.targets != IGNORED
    right, count = int((given == batch.targets)[scored].sum()), int(scored.sum())
    if as_json:
        rows = {"tokens": batch.tokens, "expected": batch.targets, "answers": given}
        plain = {name: row[0].tolist() for name, row in rows.items()}
        print(json.dumps({"task": task.name, **plain, "correct": right, "scored": count}, indent=2))
        return
    print(f"A sequence of the task {task.name}; below it the expected answers, and below those the model's:\n")
    print(task.draw(batch, given))
    print(f"\n{right} of {count} correct")


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


@app.command("evaluate")
def evaluate_model(
    run: RunFolder,
    *,
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text.")] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(help="Instead of a text: YAML file of a task of lm-eval, with its data beside it (repeatable)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First N documents of each task.  \\[default: all]")] = None,
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

    Tasks are local files, such as those that examples/needle.py writes; nothing
    is downloaded. With tasks, MODEL may be any Hugging Face model folder.
    """
    if (corpus is None) == (not tasks):
        raise SettingError("expected --corpus, the folder of a prepared text, or --tasks, YAML files; and not both.")
    if corpus is None:
        results = _on_tasks(run, tasks or [], tokenizer, limit, batch)
        print(json.dumps(results, indent=2)) if as_json else _print_results(results)
        return
    from resolvent.train.model_source import open_model
    from resolvent.train.perplexity import on_text
    from resolvent.train.processes import default_device

    trained = open_model(run)
    text = Text(str(corpus), context or (Text.context if trained.text is None else trained.text.context))
    trained.check_tokenizer(text.opened.tokenizer)
    model = trained.load().to(default_device())
    with progress("evaluating", len(text.windows(batch, split, stride))) as advance:
        evaluation = on_text(
            model, text, batch, split=split, stride=stride, precision=trained.precision, advance=advance
        )
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        windows = "windows that do not overlap" if stride is None else f"windows {stride:,} apart"
        print(
            f"perplexity {evaluation.perplexity:.3f}, {evaluation.bits_per_byte:.4f} bits per byte, "
            f"{evaluation.tokens:,} tokens of {split}, contexts of {text.context:,}, {windows}"
        )


def _on_tasks(run: Path, tasks: list[Path], tokenizer: str | None, limit: int | None, batch: int) -> Results:
    """The metrics of a model on tasks of lm-eval; the folder may also be one of transformers, with its tokenizer."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # the libraries read this once, on import
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from resolvent.hf.convert import from_language_model, is_of_transformers
    from resolvent.hf.evaluate import evaluate
    from resolvent.hf.tokenizer import fast_tokenizer
    from resolvent.hf.versions import without_progress_bars
    from resolvent.train.model_source import open_model

    with without_progress_bars():
        if is_of_transformers(run):
            model = AutoModelForCausalLM.from_pretrained(run, dtype="auto", local_files_only=True)
            vocabulary = fast_tokenizer(tokenizer) if tokenizer else AutoTokenizer.from_pretrained(run)
        else:
            trained = open_model(run)
            model, vocabulary = from_language_model(trained.load()), fast_tokenizer(trained.tokenizer(tokenizer))
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):  # bars are for people
        return evaluate(model, vocabulary, tasks, limit=limit, batch_size=batch)


def _print_results(results: Results) -> None:
    table = Table("task", "metric", "value", box=None)
    for name, metrics in results.items():
        for metric, value in metrics.items():
            table.add_row(name, metric, f"{value:.4g}")
    Console().print(table)


@app.command("convert")
def convert_model(
    source: Annotated[
        Path, typer.Argument(metavar="FROM", help="Folder of a run, of a saved model or of transformers; a checkpoint.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TO", help="New folder.")],
    *,
    tokenizer: TokenizerName = None,
) -> None:
    """Convert a model for Hugging Face transformers, or back; the weights stay the same bit for bit.

    The folder of a run or of a saved model becomes one that
    AutoModelForCausalLM loads, with the tokenizer of the text that the model
    was trained on, or --tokenizer. Converting that gives a saved model again.
    """
    from resolvent.hf.convert import check_target, from_language_model, is_of_transformers, load, to_language_model
    from resolvent.hf.tokenizer import fast_tokenizer
    from resolvent.hf.versions import without_progress_bars
    from resolvent.train.model_source import open_model

    check_target(target)
    with without_progress_bars():
        if is_of_transformers(source):
            to_language_model(load(source)).save(target)
        else:
            trained = open_model(source)
            known = tokenizer is not None or trained.text is not None
            vocabulary = fast_tokenizer(trained.tokenizer(tokenizer)) if known else None
            settings = {} if vocabulary is None else {"eos_token_id": vocabulary.eos_token_id}
            from_language_model(trained.load(), **settings).save_pretrained(target)
            if vocabulary is not None:
                vocabulary.save_pretrained(target)
    say_written(target)
