"""Commands about corpora: tokenize texts, and describe the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskID, TaskProgressColumn, TimeRemainingColumn

from resolvent.cli.display import bars
from resolvent.cli.shared import AsJson, app, parse_length, say_written

data = typer.Typer(help="Tokenize texts into a corpus on disk, and describe it.", no_args_is_help=True)
app.add_typer(data, name="data")

Texts = Annotated[
    list[str],
    typer.Argument(
        metavar="TEXT",
        help="wikitext2, sotu, shakespeare, openwebtext or python (its standard library, nothing to download); or text "
        "files, .jsonl or .parquet files (.gz too), and "
        "folders of .txt, .jsonl and .parquet files. Write ./NAME for a file with the name of a corpus.",
    ),
]
Field = Annotated[str, typer.Option(help="Field of .jsonl records, or column of .parquet files, that holds the text.")]
Errors = Annotated[
    str,
    typer.Option(help="Text that is not valid UTF-8: strict (raise an error) or replace (insert U+FFFD and count)."),
]
HeldOut = Annotated[
    float | None,
    typer.Option(
        help="Fraction held out for validation, and again for test, if the texts have no splits.",
        show_default="0.05; 0.0005 for openwebtext",
    ),
]


@data.command("prepare")
def prepare_text(
    sources: Texts,
    *,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="gpt2 (BPE, downloaded once), bytes, bpe:1024 (of so many tokens, trained here on what is not held "
            "out), or the path of a tokenizer.json."
        ),
    ] = "gpt2",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the corpus.", show_default="out/text/NAME-TOKENIZER"),
    ] = None,
    field: Field = "text",
    errors: Errors = "strict",
    held_out: HeldOut = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize texts: a file of token ids for each of train, validation and test, and corpus.json.

    A text file is one document, as is each line of .jsonl and each row of
    .parquet; documents are separated by the end-of-text token. Files named
    train, validation and test keep their splits; otherwise documents are held
    out by their hash, or the end of a single text is.

    If interrupted, rerun the same command to resume; if complete, it prints
    the results.

    Example: resolvent data prepare python --tokenizer bpe:1024
    """
    from resolvent.text import prepare

    folder = out or Path("out") / "text" / f"{_stem(sources[0])}-{Path(tokenizer).stem.replace(':', '-')}"
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


@data.command("train-tokenizer")
def train_a_tokenizer(
    sources: Texts,
    *,
    vocab: Annotated[
        int, typer.Option(parser=parse_length, metavar="TOKENS", help="Tokens in all, such as 4096 or 8k.")
    ] = 4096,
    out: Annotated[Path, typer.Option(help="File of the tokenizer.")] = Path("out/text/tokenizer.json"),
    field: Field = "text",
    errors: Errors = "strict",
    held_out: HeldOut = None,
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer on texts: byte-level BPE, in a tokenizer.json that other libraries read, too.

    It sees what 'data prepare' would train on, and not what that holds out.
    The same texts give the same file.

    Example: resolvent data train-tokenizer wikitext2 --vocab 4096 --out out/text/bpe.json
    """
    from resolvent.text import train_tokenizer

    with _progress_bar() as (on_progress, _):
        trained = train_tokenizer(
            sources, out, vocab, field=field, errors=errors, held_out=held_out, on_progress=on_progress
        )
    if as_json:
        print(json.dumps({"file": str(out), "hash": trained.hash, "vocab_size": trained.vocab_size}, indent=2))
    else:
        fewer = (
            f" (the text has no more pairs to merge; {vocab:,} were asked for)" if trained.vocab_size < vocab else ""
        )
        print(f"a vocabulary of {trained.vocab_size:,} tokens{fewer}: {trained.name}")
    say_written(out)


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


@data.command("reach")
def measure_reach(
    folder: Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus written by `data prepare`.")],
    *,
    context: Annotated[
        int, typer.Option(parser=parse_length, metavar="TOKENS", help="The longest window, such as 512 or 2k.")
    ] = 1024,
    plot: Annotated[Path | None, typer.Option(help="Draw the gains (.png, .pdf or .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a text offers to models that read far, without training any.

    A trigram model of the training split predicts the validation split, mixed
    with an n-gram cache: what followed the same tokens within the last 8, 16,
    32, … tokens. What a longer window gains is there for whoever can reach it.
    Weights are fitted on one half of validation and measured on the other.

    Example: resolvent data reach out/text/python-bpe-1024 --plot out/reach.png
    """
    from resolvent.text import Corpus, reach

    corpus = Corpus.open(folder)
    with _progress_bar() as (on_progress, _):
        offered = reach(corpus, context, on_progress)
    if as_json:
        print(json.dumps(offered.to_dict() | {"reading": offered.reading}, indent=2))
    else:
        from resolvent.report.reach import reach_table

        Console().print(reach_table(offered))
        print(f"{offered.targets:,} targets of validation; the trigram model is of {offered.trained:,} tokens.")
        print(offered.reading)
    if plot is not None:
        from resolvent.report.figures import save
        from resolvent.report.reach import reach_figure

        say_written(save(reach_figure(offered, folder.resolve().name), plot))


def _stem(source: str) -> str:
    return Path(source).resolve().name.split(".")[0] or "text"


@contextmanager
def _progress_bar() -> Iterator[tuple[Callable[[str, float], None], Callable[[str], None]]]:
    """A progress bar on standard error, if that is a terminal; yields (on_progress, on_message)."""
    with bars(TaskProgressColumn(), TimeRemainingColumn()) as bar:
        tasks: dict[str, TaskID] = {}

        def on_progress(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0)
            bar.update(tasks[stage], completed=fraction)

        yield on_progress, lambda text: bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
