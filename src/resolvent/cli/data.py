"""Commands about texts: make tokens of them, and say what was made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from resolvent.cli.shared import AsJson, app, say_written

data = typer.Typer(help="Turn texts into tokens on disk, and look at what is there.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("prepare")
def prepare_text(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...",
            help="wikitext2, sotu, shakespeare or openwebtext; or files (.txt, .jsonl, .parquet, .txt.gz, .jsonl.gz) "
            "and folders of them. A file that is named like a corpus is given as ./NAME.",
        ),
    ],
    tokenizer: Annotated[str, typer.Option(help="gpt2 (its BPE, fetched once) or bytes.")] = "gpt2",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the corpus; out/text/NAME-TOKENIZER if not given.")
    ] = None,
    field: Annotated[str, typer.Option(help="The field or column of jsonl and parquet that has the text.")] = "text",
    errors: Annotated[
        str, typer.Option(help="Text that is no UTF-8: strict (refuse) or replace (put U+FFFD there, and count).")
    ] = "strict",
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Share of validation, and of test, where the texts have no splits; 0.05, of openwebtext 0.0005."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make tokens of a text: a file of 16-bit numbers for each of train, validation and test, and corpus.json.

    A .txt file is one document, as is each line of .jsonl and each row of .parquet; the end-of-text token stands
    between documents. Files named train, validation and test keep their splits; otherwise documents are held out by
    their hash, or the end of a single text. Killed, the same command goes on; done, it only prints.
    """
    from resolvent.text import prepare

    folder = out or Path("out") / "text" / f"{_name(sources[0])}-{tokenizer}"
    with _bar() as (show, say):
        corpus = prepare(sources, folder, tokenizer, field=field, errors=errors, held_out=held_out, show=show, say=say)
    print(json.dumps({"folder": str(corpus.folder), **corpus.about}, indent=2) if as_json else corpus)
    say_written(corpus.folder)


@data.command("info")
def describe_corpus(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A corpus, as `data prepare` writes it.")],
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare its hashes too.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a prepared corpus holds: tokenizer, documents, lines, bytes and tokens of each split."""
    from resolvent.text import Corpus

    corpus = Corpus.open(folder, hashes=check)
    print(json.dumps({"folder": str(corpus.folder), **corpus.about}, indent=2) if as_json else corpus)


def _name(source: str) -> str:
    return Path(source).resolve().name.split(".")[0] or "text"


@contextmanager
def _bar() -> Iterator[tuple[Callable[[str, float], None], Callable[[str], None]]]:
    """How far it is and how long it will take, on standard error, for people only."""
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)

        yield show, lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
