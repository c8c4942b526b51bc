"""Commands that evaluate models on tasks of lm-eval in local files, and that write such tasks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from resolvent.cli.runs import RunFolder, TokenizerName, model_folder, tokenizer_of
from resolvent.cli.shared import AsJson, app, parse_length, say_written


@app.command("evaluate")
def evaluate_model(
    run: RunFolder,
    *,
    tasks: Annotated[list[Path], typer.Option("--tasks", help="YAML file of a task of lm-eval (repeatable).")],
    tokenizer: TokenizerName = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task.  \\[default: all]")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at a time.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on tasks of lm-eval whose data lie beside them; nothing is downloaded.

    The folder may also be one of transformers, with its tokenizer. Tasks for
    long contexts are written by `resolvent long-context`.
    """
    _keep_offline()
    from transformers import AutoTokenizer

    from resolvent.hf.evaluate import evaluate, load
    from resolvent.hf.tokenizer import fast_tokenizer
    from resolvent.hf.versions import without_progress_bars

    folder = model_folder(run)
    with without_progress_bars():
        model = load(folder)
        if tokenizer is None and (folder / "tokenizer_config.json").exists():
            vocabulary = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        else:
            vocabulary = fast_tokenizer(tokenizer_of(run, model.config.vocab_size, tokenizer).name)
    results = evaluate(model, vocabulary, tasks, limit=limit, batch_size=batch_size)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    table = Table("task", "metric", "value", box=None)
    for name, metrics in results.items():
        for metric, value in metrics.items():
            table.add_row(name, metric, f"{value:.4g}")
    Console().print(table)


@app.command("long-context")
def write_long_context(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the tasks.")],
    *,
    lengths: Annotated[
        list[int], typer.Option("--length", parser=parse_length, metavar="N", help="Characters of a text (repeatable).")
    ] = [1024, 4096],  # noqa: B006
    documents: Annotated[int, typer.Option(min=1, help="Documents of each task.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed for the texts.")] = 0,
) -> None:
    """Write tasks for long contexts, in the style of RULER, for `resolvent evaluate`.

    A needle in a haystack and variables to track, among four choices each.
    """
    from resolvent.hf.long_context import write_tasks

    for path in write_tasks(folder, lengths, documents=documents, seed=seed):
        say_written(path)


def _keep_offline() -> None:
    """Before the libraries are imported, which read this once."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"
