"""A report of a study as Markdown, and in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from resolvent.studies.grade import Grade
from resolvent.studies.study import Claims, StudyReport, TextTable

if TYPE_CHECKING:
    from rich.table import Table


def markdown(report: StudyReport) -> str:
    """Tables, notes, and the grades of claims that could be tested, with the rule."""
    first, *others = report.tables
    blocks = [markdown_table(first.head, first.rows), *report.notes]
    blocks += [markdown_table(each.head, each.rows) for each in others]
    if report.claims.tested.graded:
        blocks += [_markdown_claims(report.claims), report.claims.rule]
    return "\n\n".join(blocks) + "\n"


def terminal(table: TextTable) -> Table:
    from rich.table import Table

    wide = sum(max(len(line) for row in (table.head, *table.rows) for line in row[i].split("\n")) + 2
               for i in range(len(table.head))) > 80  # fmt: skip
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1 if wide else 2, 0, 0))
    for number, name in enumerate(table.head):
        shown.add_column(name, justify="left" if number < table.names else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def terminal_claims(claims: Claims) -> Table:
    """Grades of what could be tested, each below the statement that it is about."""
    from rich.markup import escape
    from rich.table import Table

    table, last = Table.grid(padding=(0, 2)), ""
    for statement, comparison, grades in claims.tested.rows:
        if statement != last:
            table.add_row("", f"[dim]{escape(statement)}[/dim]")
        table.add_row(f"  {_counted(grades)}", escape(comparison))
        last = statement
    return table


def _counted(grades: Sequence[Grade]) -> str:
    """One grade where all settings have the same, or how often each was given."""
    counts = Counter(grade for grade in grades if grade != "not run")
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{grade} {n}" for grade, n in counts.items())


def _markdown_claims(claims: Claims) -> str:
    grades = claims.settings if len(claims.settings) > 1 else ("grade at this scale",)
    if any(each.statement for each in claims.tested.graded):
        head: tuple[str, ...] = (claims.source, "compared", *grades)
        return markdown_table(head, ((*names, *each) for *names, each in claims.tested.rows))
    return markdown_table(("claim of the paper", *grades), ((name, *each) for _, name, each in claims.tested.rows))


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = [_in_one_line(name) for name in head]
    lines = [names, *rows]
    first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n".join([first, "|" + "---|" * len(names), *others])


def _in_one_line(heading: str) -> str:
    """A heading that a terminal shows in several lines."""
    return heading.replace("-\n", "").replace("…\n", "…").replace("\n", " ")
