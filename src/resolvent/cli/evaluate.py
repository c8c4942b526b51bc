"""Tasks of lm-eval in local files: how `evaluate` runs them, and the command that writes some for long contexts."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from resolvent.cli.shared import app, parse_length, say_written

if TYPE_CHECKING:
    from resolvent.hf.evaluate import Results


def on_tasks(run: Path, tasks: list[Path], tokenizer: str | None, limit: int | None, batch: int) -> Results:
    """The metrics of a model on tasks of lm-eval; the folder may also be one of transformers, with its tokenizer."""
    _keep_offline()
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


def show(results: Results) -> None:
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
