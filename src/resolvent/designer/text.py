"""A design as text, 80 columns wide: a table, then why, and what better would cost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolvent.designer.design import Design

_WIDTH, _LEAST_NAMES = 80, 16
_HEAD = ("reads", "slots", "hops\n(least)", "mean", "congestion\n(least)")
_EXPLAINED = 3  # candidates of which it is said what better would cost


def design_text(design: Design, most: int = 6) -> str:
    """The best of each kind, at most so many."""
    shown = design.candidates[:most]
    rows = [[cell.replace(" (", "\n(") for cell in each.cells[1:]] for each in shown]
    widths = [max(len(line) for row in (_HEAD, *rows) for line in row[column].split("\n")) for column in range(5)]
    names = max(_WIDTH - 4 - sum(widths) - 2 * len(widths), _LEAST_NAMES)
    names = min(names, max(len(each.structure.label) for each in shown) + 1)
    lines = [*_wrapped(design.title), *_wrapped(design.least_text), "", *_row("", "pattern", _HEAD, names, widths)]
    for rank, (each, row) in enumerate(zip(shown, rows, strict=True), 1):
        lines += _row(str(rank), each.structure.label, row, names, widths)
    for rank, each in enumerate(shown, 1):
        lines += ["", *_wrapped(f"{rank:>2}  {each.why}", "    ")]
        if rank <= _EXPLAINED and each.better:
            lines += ["    Better, and at what cost:", *(_better(str(one)) for one in each.better)]
    return "\n".join(line.rstrip() for line in [*lines, "", *_wrapped(_summary(design, most))])


def _row(rank: str, name: str, cells: Sequence[str], names: int, widths: Sequence[int]) -> list[str]:
    """As many lines as the name or a cell has."""
    columns = [textwrap.wrap(name, names, break_on_hyphens=False), *(cell.split("\n") for cell in cells)]
    lines = []
    for number, (first, *others) in enumerate(zip_longest(*columns, fillvalue="")):
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(others, widths, strict=True))
        lines.append(f"{'' if number else rank:>2}  {first:<{names}}  {numbers}")
    return lines


def _better(text: str) -> str:
    return "\n".join(
        textwrap.wrap(text, _WIDTH, initial_indent="    - ", subsequent_indent="      ", break_on_hyphens=False)
    )


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _summary(design: Design, most: int) -> str:
    left = f" {len(design) - most} more kinds: --json, or to_dict()." if len(design) > most else ""
    skipped = f" Skipped, since measuring them would take long: {len(design.skipped)}." if design.skipped else ""
    return (
        f"The best of each kind, ranked by {design.ranked_by}.{left} {design.considered:,} structures were considered, "
        f"{design.measured:,} measured; the others are dominated by these, most of them by proven bounds. "
        f"{len(design.frontier):,} are on the Pareto frontier. Hops are exact; congestion is exact or between proven "
        f"bounds. {design.sampled_text}{skipped}"
    )
