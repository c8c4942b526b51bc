"""Commands about texts: tokenize them into a corpus, and measure what longer context gains on it."""

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

data = typer.Typer(
    help="Tokenize texts into a corpus on disk, and measure what longer context gains on it.", no_args_is_help=True
)
app.add_typer(data, name="data")


@data.command("prepare")
def prepare_text(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT",
            help="wikitext2, sotu, shakespeare, openwebtext or python (its standard library, nothing to download); or "
            "text files, .jsonl or .parquet files (.gz too), and folders of them. Write ./NAME for a file with the "
            "name of a corpus.",
        ),
    ],
    *,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="gpt2 (BPE, downloaded once), bytes, bpe:1024 (trained on these texts), or the path of a "
            "tokenizer.json."
        ),
    ] = "gpt2",
    out: Annotated[Path | None, typer.Option(help="Folder to write.", show_default="out/text/NAME-TOKENIZER")] = None,
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
    """Tokenize texts: a file of token ids for each of train, validation and test, and corpus.json.

    A text file is one document, as is each line of .jsonl and each row of
    .parquet; documents are separated by the end-of-text token. Files named
    train, validation and test keep their splits. Otherwise some documents are
    held out, chosen by a hash of their content, or the end of a single text.

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


@data.command("context-gain")
def measure_context_gain(
    folder: Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus written by `data prepare`.")],
    *,
    context: Annotated[
        int, typer.Option(parser=parse_length, metavar="TOKENS", help="The longest window, such as 512 or 2k.")
    ] = 1024,
    plot: Annotated[Path | None, typer.Option(help="Draw the gains (.png, .pdf or .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a longer context gains on a text, without training a model on it.

    A trigram model of the training split predicts the validation split, mixed
    with an n-gram cache: what followed the same tokens within the last 8, 16,
    32, … tokens. This estimates what a model that used the
    whole window could gain. Weights are fitted on one half of validation and measured on the other.

    Example: resolvent data context-gain out/text/python-bpe-1024 --plot out/gain.png
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
