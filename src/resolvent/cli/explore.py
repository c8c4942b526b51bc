"""The command that shows patterns in the browser, or writes the page to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from resolvent.cli.shared import Length, app, complete_pattern, progress, say, say_written
from resolvent.errors import SettingError
from resolvent.patterns import pattern

_PATTERNS = ("exponential+cache", "exponential", "quadratic+cache", "first-order", "attention")
_MOST_PATTERNS, _MOST_TOKENS = 9, 4096


@app.command("explore")
def explore_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            help="Patterns to start with, nine at most.",
            show_default="five of the paper's",
            autocompletion=complete_pattern,
        ),
    ] = None,
    *,
    n: Length = 64,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for one that is free.")] = 8642,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one self-contained file instead of serving.")
    ] = None,
) -> None:
    """Explore patterns in the browser: reads, cache, paths, load, growth, and the designer's frontier.

    Serves a page on this machine alone until interrupted. With --export, writes
    the page for these patterns to a file that works offline and without a server.
    """
    spellings = [pattern(spec).spelling for spec in specs or _PATTERNS]
    if len(spellings) > _MOST_PATTERNS:
        raise SettingError(f"expected at most {_MOST_PATTERNS} patterns, got {len(spellings)}.")
    if n > _MOST_TOKENS:
        raise SettingError(f"tokens are drawn one by one: expected n ≤ {_MOST_TOKENS:,}, got {n:,}.")
    if export is not None:
        from resolvent.explore.export import export as write

        with progress(f"analyzing {len(spellings)} patterns", 1):
            written = write(spellings, n, export)
        say_written(written)
        return
    from resolvent.explore.server import serve

    say("Serving on this machine alone; interrupt with Ctrl-C.")
    serve(port, "?" + urlencode([*(("p", each) for each in spellings), ("n", n)]), open_browser=open_browser)
