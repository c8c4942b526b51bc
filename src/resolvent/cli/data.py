"""Commands about corpora: tokenize texts, and describe the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from resolvent.cli.shared import AsJson, app, say_written

data = typer.Typer(help="Tokenize texts into a corpus on disk, and describe it.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("prepare")
def prepare_text(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT",
            help="wikitext2, sotu, shakespeare or openwebtext; or text files, .jsonl or .parquet files (.gz too), and "
            "folders of .txt, .jsonl and .parquet files. Write ./NAME for a file with the name of a corpus.",
        ),
    ],
    *,
    tokenizer: Annotated[str, typer.Option(help="gpt2 (BPE, downloaded once) or bytes.")] = "gpt2",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the corpus.", show_default="out/text/NAME-TOKENIZER"),
    ] = None,
    field: Annotated[
        str, typer.Option(help="Field of .jsonl records, or column of .parquet files, that holds the text.")
    ] = "text",
    errors: Annotated[
        str,
        typer.Option(
            help="Text that is not valid UTF-8: strict (raise an error) or replace (insert U+FFFD and count)."
        ),
    ] = "strict",
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Fraction held out for validation, and again for test, if the texts have no splits.",
            show_default="0.05; 0.0005 for openwebtext",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize texts: a file of 16-bit token ids for each of train, validation and test, and corpus.json.

    A text file is one document, as is each line of .jsonl and each row of
    .parquet; documents are separated by the end-of-text token. Files named
    train, validation and test keep their splits; otherwise documents are held
    out by their hash, or the end of a single text is.

    If interrupted, rerun the same command to resume; if complete, it prints
    the results.
    """
    from resolvent.text import prepare

    folder = out or Path("out") / "text" / f"{_stem(sources[0])}-{tokenizer}"
    with _progress_bar() as (on_progress, on_message):
        corpus = prepare(
            sources,
            folder,
            tokenizer,
            field=field,
            errors=errors,
            held_out=held_out,
            on_progress=on_progress,
            on_message=on_message,
        )
    print(json.dumps(corpus.to_dict(), indent=2) if as_json else corpus)
    say_written(corpus.folder)


@data.command("info")
def describe_corpus(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A corpus written by `data prepare`.")],
    *,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare the hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Describe a corpus: tokenizer, and documents, lines, bytes and tokens of each split."""
    from resolvent.text import Corpus

    corpus = Corpus.open(folder, hashes=check)
    print(json.dumps(corpus.to_dict(), indent=2) if as_json else corpus)


def _stem(source: str) -> str:
    return Path(source).resolve().name.split(".")[0] or "text"


@contextmanager
def _progress_bar() -> Iterator[tuple[Callable[[str, float], None], Callable[[str], None]]]:
    """A progress bar on standard error, if that is a terminal; yields (on_progress, on_message)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, TaskID] = {}

        def on_progress(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0)
            bar.update(tasks[stage], completed=fraction)

        yield on_progress, lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
