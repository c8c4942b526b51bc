"""The command that makes published tables from committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.shared import app, say_written


@app.command("results")
def results(
    document: Annotated[Path, typer.Argument(help="Document whose marked parts are made anew.")] = Path(
        "docs/results.md"
    ),
    records: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("docs/records"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table would change, or a figure is missing.")
    ] = False,
) -> None:
    """Make the tables and figures of a document anew from records of runs: every number in it comes from there."""
    from resolvent.report.figures import save
    from resolvent.report.results import figures, renewed

    before = document.read_text()
    after = renewed(before, records)
    drawn = {document.parent / "figures" / f"{name}.png": figure for name, figure in figures(after, records).items()}
    if check:
        if before != after or not all(path.exists() for path in drawn):
            raise ValueError(f"{document} is not what {records} give: run 'resolvent results {document}'.")
        print(f"{document} is what {records} give")
        return
    document.write_text(after)
    for path, figure in drawn.items():
        save(figure, path)
    say_written(document)
