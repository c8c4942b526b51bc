"""What all commands share: the application, options that several take, progress, and how errors are said."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn

import resolvent
from resolvent.cli.display import bars
from resolvent.errors import PatternError, RunError
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES
from resolvent.patterns.checks import require_length

_SYMBOLS = "■□◆●·×–─…≤≥≲±∞→√∛²µ␣"
_SPELLED = "# o * * . x - - ... <= >= <~ +- inf -> sqrt cbrt ^2 u _"
_ASCII = dict(zip(_SYMBOLS, _SPELLED.split(), strict=True))
_ESCAPED = range(0xDC80, 0xDD00)  # how Python holds bytes of file names that are not text
_LONGEST_OFFERED = 24  # characters: a table written out is no help

app = typer.Typer(
    name="resolvent",
    help="Causal token mixers y = (I - B)^-1 A x: choose which past positions a token reads, see what that costs and "
    "what it can express.\n\nStart with [bold]resolvent analyze[/bold], then [bold]resolvent analyze "
    "exponential+cache[/bold].",
    rich_markup_mode="rich",
    no_args_is_help=True,
)


def complete_pattern(incomplete: str) -> list[str]:
    """Spellings that begin so, for shells to offer: examples of the families, and what can be appended to them."""
    samples = [family.sample for family in FAMILIES.values() if len(family.sample) < _LONGEST_OFFERED]
    ends = ("", *MODIFIERS) if "+" in incomplete else ("",)
    offered = dict.fromkeys([*(sample + end for sample in samples for end in ends), *PAPER_STRUCTURES])
    return [name for name in offered if name.startswith(incomplete)]


def parse_length(text: str) -> int:
    """Parse an option such as 4096, 128k or 1M."""
    try:
        return require_length(text)
    except PatternError as error:  # of a plain ValueError, click would print the value alone
        raise typer.BadParameter(str(error)) from error


Length = Annotated[
    int,
    typer.Option(
        "--n", "-n", parser=parse_length, metavar="N", help="Sequence length in tokens, such as 4096, 128k or 1M."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Heads = Annotated[int, typer.Option(help="Number of heads.")]
HeadDim = Annotated[int, typer.Option(help="Dimension of each head.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if context.invoked_subcommand != "bench":  # which measures what a script gets that sets nothing
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # or torch's idle threads spin, on cores that others need
    if version:
        print(f"resolvent {resolvent.__version__}")
        raise typer.Exit


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, for people only; it vanishes when done."""
    with bars(TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=total if total > 1 else None)
        yield lambda: bar.advance(task)


def say(message: str) -> None:
    """On standard error, so that standard output stays the result alone; of several processes, one speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr, flush=True)


def say_written(path: Path) -> None:
    say(f"written: {path}")


def replace_what_cannot_be_encoded() -> None:
    """From now on printing raises no error, whatever the encoding: characters that it lacks are spelled in ASCII."""
    codecs.register_error("resolvent", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not a test's, nor a notebook's
            stream.reconfigure(errors="resolvent")


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    if all(ord(character) in _ESCAPED for character in characters):
        return bytes(ord(character) - 0xDC00 for character in characters), error.end
    return "".join(_ASCII.get(character, "?") for character in characters), error.end


def main() -> None:
    """Run the command line; what is wrong with the arguments is said in one line, without a traceback."""
    replace_what_cannot_be_encoded()
    try:
        app()
    except (ValueError, ImportError, OSError, RunError) as error:
        console = Console(stderr=True, soft_wrap=True)
        console.print("error:", style="bold red", end=" ")
        console.print(str(error), markup=False, highlight=False)
        sys.exit(2)
