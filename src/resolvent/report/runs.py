"""Runs beside each other: a list, what tells them apart, their results, and their curves on one plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from resolvent.analysis.figures.palette import COLORS, INK
from resolvent.errors import shortened
from resolvent.train.evaluations import TextEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from resolvent.train.runs import Run

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_WORDS = ("task", "state")  # columns of single words


def list_table(runs: Sequence[Run], now: float) -> Table:
    """A row for each run: what it is, how far it is, and how well it does."""
    table, measures = _table("run", "task", "pattern", "state"), _measures(runs)
    _add_numbers(table, "params", "steps", "loss", *measures, "age")
    for run in runs:
        config = run.config
        table.add_row(escape(run.name), config.task.name, escape(config.model.pattern_label), run.state,
                      _count(run.parameters), f"{run.step:,}/{config.train.steps:,}", _number(run.loss),
                      *_values(run, measures), duration(max(now - run.changed, 0)))  # fmt: skip
    return table


def settings_table(names: Sequence[str], settings: dict[str, list[object]]) -> Table:
    """The settings that differ: a row each, a column for each run."""
    table = _table("setting", *names)
    for key, values in settings.items():
        table.add_row(key, *(escape(_setting(value)) for value in values))
    return table


def results_table(runs: Sequence[Run]) -> Table:
    """What came out of each run, or of as much of it as there is."""
    table, measures, bits = _table("run"), _measures(runs), any(_bits(run) for run in runs)
    _add_numbers(table, "params", "steps", "loss", *measures, *(["bits/byte"] if bits else []), "tokens/s", "time")
    for run in runs:
        last = run.record or (run.log[-1] if run.log else None)
        times = ("", "") if last is None else (f"{last.tokens_per_second:,.0f}", duration(last.seconds))
        table.add_row(escape(run.name), _count(run.parameters), f"{run.step:,}", _number(run.loss),
                      *_values(run, measures), *([_bits(run)] if bits else []), *times)  # fmt: skip
    return table


def curves_figure(runs: Sequence[Run]) -> Figure:
    """Loss, and accuracy or perplexity, by step: a line for each run."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    measures = _measures(runs)
    figure = Figure(figsize=(5 + 4.5 * len(measures), 4.4), layout="constrained")
    panels = list(figure.subplots(1, 1 + len(measures), squeeze=False)[0])
    ends: dict[Axes, list[tuple[float, float, str, str]]] = {axes: [] for axes in panels}
    for index, run in enumerate(runs):
        color = COLORS[index % len(COLORS)]
        lines = {
            "loss": [(line.step, line.loss) for line in run.log],
            run.measure: [(line.step, line.value) for line in run.log if line.value is not None],
        }
        if run.record is not None and not run.log:
            lines = {
                "loss": [(point.step, point.loss) for point in run.record.curve],
                run.measure: [(point.step, point.value) for point in run.record.curve],
            }
        for axes, name in zip(panels, ["loss", *measures], strict=True):
            points = [(step, value) for step, value in lines.get(name, []) if math.isfinite(value)]
            axes.plot(*zip(*points, strict=True) if points else ([], []), color=color, linewidth=1.4,
                      marker="o" if len(points) < 30 and name != "loss" else None, markersize=3)  # fmt: skip
            if points:
                ends[axes].append((*points[-1], run.name, color))
    for axes, name in zip(panels, ["loss", *measures], strict=True):
        _finish(axes, name)
    named: set[str] = set()
    for axes in reversed(panels):  # on the right, and elsewhere runs that are not named there
        end_labels(axes, [end for end in ends[axes] if end[2] not in named], size=8)
        named |= {name for _, _, name, _ in ends[axes]}
    return figure


def duration(seconds: float) -> str:
    """In the largest unit of which there are two, such as 90 min or 3 d."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"


def _table(*texts: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in texts:
        table.add_column(escape(name), overflow="fold", min_width=min(len(name), 11), no_wrap=name in _WORDS)
    return table


def _add_numbers(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _measures(runs: Sequence[Run]) -> list[str]:
    """What these runs are measured by: a column or a panel for each."""
    return list(dict.fromkeys(run.measure for run in runs))


def _values(run: Run, measures: Sequence[str]) -> list[str]:
    return [_number(run.value) if run.measure == measure else "" for measure in measures]


def _count(parameters: int) -> str:
    """A number of parameters, such as 41.6k or 124M."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= factor:
            return f"{parameters / factor:.3g}{unit}"
    return str(parameters)


def _finish(axes: Axes, name: str) -> None:
    axes.set_title("training loss" if name == "loss" else f"{name} on what is held out", fontsize=11, color=INK)
    axes.set_xlabel("step", fontsize=9)
    if name == "perplexity" and axes.has_data():
        axes.set_yscale("log")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"


def _bits(run: Run) -> str:
    evaluation = None if run.record is None else run.record.evaluation
    return f"{evaluation.bits_per_byte:.4f}" if isinstance(evaluation, TextEvaluation) else ""


def _setting(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) and len(value) < 40 else shortened(value)
