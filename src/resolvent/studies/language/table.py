"""Tables of studies on text: columns of costs and results, and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from resolvent.studies.grade import mean
from resolvent.studies.language import figures
from resolvent.studies.language.variants import PAPER, Variant
from resolvent.studies.study import TextTable

_SOURCE = (
    "The paper's models: 125M to 775M parameters, contexts of 1,024 and 2,048, 2.6 to 13 billion tokens of "
    "OpenWebText. Its figure has no numbers; first order has, in a table: 31.28, and 30.64 with Mamba's rule (125M)."
)


@dataclass(frozen=True)
class Column:
    """A cell for each variant; `brief` columns are shown in a terminal, too, which is 80 characters wide."""

    name: str
    cell: Callable[[Variant], str]
    brief: bool = True


def filled(columns: Sequence[Column], variants: Sequence[Variant]) -> TextTable:
    names = sum(column.name in ("structure", "rule", "positions") for column in columns)
    rows = (tuple(column.cell(variant) for column in columns) for variant in variants)
    return TextTable(tuple(column.name for column in columns), tuple(rows), names)


def scale_notes(variants: Sequence[Variant]) -> tuple[str, ...]:
    """The scale of the runs, and the paper's."""
    runs = [run for variant in variants for run in variant.runs]
    records = list({id(run.record): run.record for run in runs}.values())
    counts = [variant.parameters for variant in variants]
    sizes = dict.fromkeys([_count(min(counts)), _count(max(counts))])
    seeds = sorted({record.seed for record in records})
    rates = sorted({record.config.train.learning_rate for record in records})
    hours, skipped = sum(record.seconds for record in records) / 3600, sum(record.skipped_steps for record in records)
    text, environment = runs[0].text, records[0].environment
    commits = " and ".join(dict.fromkeys(str(record.environment.commit) for record in records))
    return (
        f"Scale: {' to '.join(sizes)} parameters, contexts of {text.context:,}, {_count(records[0].tokens)} tokens of "
        f"{Path(text.corpus).name} ({text.tokenizer}) for each run; seeds {', '.join(map(str, seeds))}; learning rate "
        f"{', '.join(map(str, rates))}; {skipped:,} steps skipped. {hours:.1f} hours in all. "
        f"torch {environment.packages.get('torch', '(unknown)')}, {environment.machine}, commit {commits}.",
        _SOURCE,
    )


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, ± half the spread over seeds."""
    half = (max(values) - min(values)) / 2
    return f"{mean(values):,.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) > 1 else "")


def _count(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # of the next smaller unit there would be 1e+03
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= 999.5 / 1024 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _results(variants: Sequence[Variant], *, rules: bool) -> list[Column]:
    """Costs and results; a terminal that shows rules, too, has fewer of them."""
    columns = [
        Column("params", lambda v: _count(v.parameters), not rules),
        Column("mixing", lambda v: _count(v.mixing_madds)),
        Column("cache", lambda v: _bytes(v.cache_bytes)),
        Column("ms per 1k tokens", lambda v: f"{v.milliseconds:.0f}", brief=False),
        Column("perplexity", lambda v: spread(v.perplexities, 2)),
        Column("bits per byte", lambda v: spread(v.bits, 3), not rules),
    ]
    if any(variant.name in PAPER for variant in variants):
        columns.append(Column("paper", lambda v: f"{PAPER[v.name]:.2f}" if v.name in PAPER else "–"))
    return columns


def pareto_columns(variants: Sequence[Variant]) -> list[Column]:
    return [Column("structure", lambda v: v.name), *_results(variants, rules=False)]


def rule_columns(variants: Sequence[Variant]) -> list[Column]:
    first = {v.structure: v for v in reversed(variants)}

    def change(v: Variant) -> str:
        ratio = mean(v.perplexities) / mean(first[v.structure].perplexities)
        return "" if v is first[v.structure] else f"{ratio - 1:+.1%}"

    names = [Column("structure", lambda v: v.structure), Column("rule", lambda v: v.rule)]
    return [*names, *_results(variants, rules=True), Column("change", change)]


_COLUMNS = (
    "Mixing: multiply-adds per token along the sequence, forward, in all layers, mean over the context. Cache: of all "
    "layers for one sequence as long as the context, float32. ms per 1k tokens: training time of the quickest seed. "
    "Perplexity and bits per byte: all of the validation split in windows that do not overlap, mean ± half the spread "
    "over seeds."
)


def pareto_notes(variants: Sequence[Variant]) -> list[str]:
    best_by = {
        "multiply-adds": figures.on_frontier(variants, lambda v: v.mixing_madds),
        "cache": figures.on_frontier(variants, lambda v: v.cache_bytes),
    }
    frontiers = "; ".join(f"by {what}: {', '.join(v.name for v in best)}" for what, best in best_by.items())
    return [_COLUMNS, f"On the Pareto frontier of the means, from the cheapest on, {frontiers}."]


def rule_notes(_: Sequence[Variant]) -> list[str]:
    return [f"{_COLUMNS} Change: of the mean perplexity, against the first rule of the structure."]
