"""The command that draws the paper's figures, and one that it does not have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resolvent.cli.shared import app, parse_length, say_written
from resolvent.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RECORDS = Path("docs/records")
_NAMES = ("1", "2", "3", "frontier")
_COLORS = 256  # of a PNG: fewer would change those of the palette


@app.command("figure")
def draw_figure(
    name: Annotated[str, typer.Argument(metavar="1|2|3|frontier", help="Which figure.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .png, .svg or .pdf.", show_default="out/figure-NAME.png")
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            "-n",
            parser=parse_length,
            metavar="N",
            help="Tokens to draw.",
            show_default="8 in 1, 32 in 2, 1,024 in frontier",
        ),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Records of 'resolvent study pareto' for figure 3, one panel per file (repeatable).",
            show_default="docs/records/pareto-*.jsonl",
        ),
    ] = None,
) -> None:
    """Draw a figure of the paper, or what it leaves open.

    1 the formulation, 2 the sparsity patterns, 3 perplexity against complexity;
    frontier: the fewest hops and the least congestion that a cache allows, with
    the paper's structures, and the cache that both need.
    """
    from resolvent.report.figures import save

    if name not in _NAMES:
        raise SettingError(f"expected figure {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, got {name}.")
    if name == "3" and n is not None:
        raise SettingError("figure 3 is drawn from records: expected no --n with it.")
    if name != "3" and records:
        raise SettingError(f"figure {name} is drawn from patterns: --records goes with figure 3.")
    figure = _results(records) if name == "3" else _patterns(name, n)
    say_written(save(figure, out or Path("out") / f"figure-{name}.png", colors=_COLORS))


def _patterns(name: str, n: int | None) -> Figure:
    from resolvent.report.formulation import formulation_figure
    from resolvent.report.frontier import frontier_figure
    from resolvent.report.sparsity import sparsity_figure

    draw = {"1": formulation_figure, "2": sparsity_figure, "frontier": frontier_figure}[name]
    return draw() if n is None else draw(n)


def _results(files: list[Path] | None) -> Figure:
    from resolvent.studies.language.complexity import complexity_figure
    from resolvent.studies.language.variants import variants
    from resolvent.train.record import read_records

    chosen = files or sorted(_RECORDS.glob("pareto-*.jsonl"))
    if not chosen:
        raise SettingError(
            f"expected records in {_RECORDS}/pareto-*.jsonl, got none: give a file with --records, or make one with "
            "'resolvent study pareto'."
        )
    panels = [variants(read_records(file)) for file in chosen]
    panels.sort(key=lambda panel: (panel[0].parameters, panel[0].runs[0].record.tokens))
    return complexity_figure(panels)
