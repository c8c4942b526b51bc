"""The command that makes published tables and figures from committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.shared import app, say_written
from resolvent.errors import SettingError

_COLORS = 256  # of a PNG: fewer would change those of the palette
_DOCUMENTS = [Path("docs/results.md"), Path("docs/bench.md"), Path("README.md")]


@app.command("results")
def results(
    documents: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DOCUMENT",
            help="Documents whose marked sections are regenerated.",
            show_default=", ".join(map(str, _DOCUMENTS)),
        ),
    ] = None,
    *,
    records: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("docs/records"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a table would change, or a figure is missing.")
    ] = False,
) -> None:
    """Regenerate the tables and figures of documents from records of runs, the source of every number in them."""
    from resolvent.report.figures import save
    from resolvent.studies.results import regenerate

    for document in documents or _DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        after, figures = regenerate(before, records)
        paths = {document.parent / "figures" / f"{name}.png": figure for name, figure in figures.items()}
        if check:
            if before != after or not all(path.exists() for path in paths):
                raise SettingError(f"{document} does not match {records}: run 'resolvent results {document}'.")
            print(f"{document} matches {records}")
            continue
        document.write_text(after, encoding="utf-8")
        for path, figure in paths.items():
            save(figure, path, colors=_COLORS)
        say_written(document)
