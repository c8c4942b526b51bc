"""Studies on text from records of runs: in the terminal, as Markdown, CSV, a figure, and one page of HTML.

What a study shows is a `View`: its columns, its figure and the statements that are graded. All else is the same.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from resolvent.report import language_claims as claims
from resolvent.report import language_figures as figures
from resolvent.report import page as html
from resolvent.report.claims import Grade
from resolvent.report.language_claims import Statement
from resolvent.report.table1 import Record
from resolvent.report.variants import PAPER, Variant, corpus_of, seed_of, variants

Cell = Callable[[Variant], str]

_SOURCE = (
    "The paper's models: 125M to 775M parameters, contexts of 1,024 and 2,048, 2.6 to 13 billion tokens of "
    "OpenWebText. Its figure has no numbers; first order has, in a table: 31.28, and 30.64 with Mamba's rule (125M)."
)


@dataclass(frozen=True)
class Column:
    """What is said of each variant; `brief` if also in a terminal, which has room for 80 characters."""

    name: str
    cell: Cell
    brief: bool = True


@dataclass(frozen=True)
class View:
    """What a study shows."""

    title: str
    columns: Callable[[Sequence[Variant]], list[Column]]
    figure: Callable[[Sequence[Variant]], Figure]
    statements: Callable[[Sequence[Variant]], list[Statement]]
    notes: Callable[[Sequence[Variant]], list[str]]


def grades(view: View, found: Sequence[Variant]) -> list[tuple[str, str, Grade]]:
    """What the paper says, what is compared, and the grade."""
    by_name = {variant.name: variant for variant in found}
    return [(each.said, str(each), each.grade(by_name)) for each in view.statements(found)]


def terminal(view: View, found: Sequence[Variant]) -> Table:
    """The columns that matter most."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = [column for column in view.columns(found) if column.brief]
    for column in columns:
        table.add_column(column.name, justify="left" if column.name in ("structure", "rule") else "right", no_wrap=True)
    for variant in found:
        table.add_row(*(column.cell(variant) for column in columns))
    return table


def graded(view: View, found: Sequence[Variant]) -> Table:
    """Grades under what the paper says, for a terminal; without those of what was not run."""
    table, last = Table.grid(padding=(0, 2)), ""
    for said, compared, grade in grades(view, found):
        if grade != "not run":
            if said != last:
                table.add_row("", f"[dim]{escape(said)}[/dim]")
            table.add_row(f"  {grade}", escape(compared))
            last = said
    return table


def markdown(view: View, records: Sequence[Record]) -> str:
    """The table, how it was made, and the grades; without those of what was not run."""
    found = variants(records)
    head, body = _filled(view, found)
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, body)]
    for note in notes(view, found):
        lines += ["", note]
    lines += ["", "| the paper | compared | grade at this scale |", "|---|---|---|"]
    lines += [_line(row) for row in grades(view, found) if row[2] != "not run"]
    return "\n".join([*lines, "", rule(view, found), ""])


def page(view: View, records: Sequence[Record], title: str) -> str:
    """One self-contained page."""
    found = variants(records)
    return html.page(
        title,
        html.table(*_filled(view, found)),
        html.notes(notes(view, found)),
        html.picture(view.title, view.figure(found)),
        html.graded("What the paper says", rule(view, found), grades(view, found)),
    )


def rule(view: View, found: Sequence[Variant]) -> str:
    """How the grades of this study are given."""
    return claims.rules(view.statements(found))


def _filled(view: View, found: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    columns = view.columns(found)
    return [column.name for column in columns], [[column.cell(variant) for column in columns] for variant in found]


def write_csv(found: Sequence[Variant], path: Path) -> None:
    """A line for each variant and length of context; at the trained length with bits per byte and costs."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["structure", "rule", "context", "trained_context", "seeds", "perplexity_mean",
                         "perplexity_least", "perplexity_most", "bits_per_byte_mean", "paper_125m", "parameters",
                         "mixing_madds_per_token", "cache_bytes", "ms_per_1k_tokens"])  # fmt: skip
        for v in found:
            for context in v.lengths or [v.context]:
                values = v.at_length(context) or v.perplexities
                own = [figures.mean(v.bits), PAPER.get(v.name, ""), v.parameters, v.mixing_madds, v.cache_bytes,
                       v.milliseconds]  # fmt: skip
                writer.writerow([v.structure, v.rule, context, v.context, len(values), figures.mean(values),
                                 min(values), max(values), *(own if context == v.context else [""] * 6)])  # fmt: skip


def notes(view: View, found: Sequence[Variant]) -> list[str]:
    """What the columns mean, at which scale, and where the paper was."""
    records = [record for variant in found for record in variant.records]
    first, seeds = records[0], sorted({seed_of(record) for record in records})
    counts = [variant.parameters for variant in found]
    sizes = dict.fromkeys([_count(min(counts)), _count(max(counts))])
    rates = sorted({record["config"]["train"]["learning_rate"] for record in records})
    said, hours = first["surroundings"], sum(record["seconds"] for record in records) / 3600
    skipped = sum(record["skipped_steps"] for record in records)
    return [
        *view.notes(found),
        f"Scale: {' to '.join(sizes)} parameters, contexts of {found[0].context:,}, "
        f"{_count(first['tokens'])} tokens of {corpus_of(first)} ({first['config']['task']['tokenizer']}) for each "
        f"run; seeds {', '.join(map(str, seeds))}; learning rate {', '.join(map(str, rates))}; {skipped:,} "
        f"steps skipped. {hours:.1f} hours in all. torch {said['torch']}, {said['machine']}, commit {said['commit']}.",
        _SOURCE,
    ]


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, ± half the spread over seeds."""
    half = (max(values) - min(values)) / 2
    return f"{figures.mean(values):,.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) > 1 else "")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _count(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _numbers(found: Sequence[Variant], *, rules: bool) -> list[Column]:
    """Costs and results; where a terminal has to show rules, fewer there."""
    columns = [
        Column("params", lambda v: _count(v.parameters), not rules),
        Column("mixing", lambda v: _count(v.mixing_madds)),
        Column("cache", lambda v: _bytes(v.cache_bytes)),
        Column("ms/1k", lambda v: f"{v.milliseconds:.0f}", brief=False),
        Column("perplexity", lambda v: spread(v.perplexities, 2)),
        Column("bits/byte", lambda v: spread(v.bits, 3), not rules),
    ]
    if any(variant.name in PAPER for variant in found):
        columns.append(Column("paper", lambda v: f"{PAPER[v.name]:.2f}" if v.name in PAPER else "–"))
    return columns


def _pareto_columns(found: Sequence[Variant]) -> list[Column]:
    return [Column("structure", lambda v: v.name), *_numbers(found, rules=False)]


def _rule_columns(found: Sequence[Variant]) -> list[Column]:
    first = {v.structure: v for v in reversed(found)}

    def change(v: Variant) -> str:
        ratio = figures.mean(v.perplexities) / figures.mean(first[v.structure].perplexities)
        return "" if v is first[v.structure] else f"{ratio - 1:+.1%}"

    names = [Column("structure", lambda v: v.structure), Column("rule", lambda v: v.rule)]
    return [*names, *_numbers(found, rules=True), Column("change", change)]


def _length_columns(found: Sequence[Variant]) -> list[Column]:
    def at(length: int) -> Column:
        return Column(f"{length:,}", lambda v: spread(values, 2) if (values := v.at_length(length)) else "–")

    lengths = sorted({length for variant in found for length in variant.lengths})
    return [Column("structure", lambda v: v.name), *map(at, lengths)]


_COLUMNS = (
    "Mixing: multiply-adds per token along the sequence, forward, in all layers, mean over the context. Cache: of all "
    "layers for one sequence as long as the context, float32. ms/1k: milliseconds of training per thousand tokens, "
    "of the quickest seed. Perplexity and bits per byte: all of the validation split in windows that do not overlap, "
    "mean ± half the spread over seeds."
)


def _pareto_notes(found: Sequence[Variant]) -> list[str]:
    paths = {
        "multiply-adds": figures.on_frontier(found, lambda v: v.mixing_madds),
        "cache": figures.on_frontier(found, lambda v: v.cache_bytes),
    }
    lines = "; ".join(f"by {what}: {', '.join(v.name for v in best)}" for what, best in paths.items())
    return [_COLUMNS, f"On the Pareto frontier of the means, from the cheapest on, {lines}."]


def _rule_notes(_: Sequence[Variant]) -> list[str]:
    return [f"{_COLUMNS} Change: of the mean perplexity, against the first rule of the structure."]


def _length_notes(found: Sequence[Variant]) -> list[str]:
    return [
        f"Perplexity on the validation split in contexts of each length; trained at {found[0].context:,}. Every target "
        "counts once at each length; mean ± half the spread over seeds. The paper claims nothing about lengths beyond "
        "those trained on."
    ]


def _of_rules(title: str, statements: Callable[[Sequence[Variant]], list[Statement]]) -> View:
    return View(title, _rule_columns, figures.rules_figure, statements, _rule_notes)


VIEWS: dict[str, View] = {
    "pareto": View(
        "perplexity against complexity", _pareto_columns, figures.pareto_figure, claims.pareto, _pareto_notes
    ),
    "mamba": _of_rules("Mamba's rule at first order", claims.mamba),
    "sharing": _of_rules("A tied to B", claims.sharing),
    "normalisation": _of_rules("gates and the softmax over T", claims.normalisation),
    "length": View(
        "longer contexts than trained on", _length_columns, figures.length_figure, claims.length, _length_notes
    ),
}
