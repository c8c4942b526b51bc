"""Figures of the in-context study: perplexity against complexity, loss by position and by budget, beside readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from resolvent.analysis.figures.palette import GRID
from resolvent.analysis.figures.palette import INK as _INK
from resolvent.analysis.figures.palette import PALE as _PALE
from resolvent.studies.grade import mean
from resolvent.studies.incontext.results import InContextResult, ReaderResult, Setting, readers, shares
from resolvent.studies.incontext.theory import reach_lines
from resolvent.studies.language.figures import color_of, place_labels
from resolvent.tasks.markov import ORACLE, PAST
from resolvent.text.batches import perplexity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = {ORACLE: "knows the chain", PAST: "Bayes, all of the past"}
_SHADES = {1: "#9aa2ad", 2: "#7a838f", 4: "#4b535e"}  # of what is counted within so many hops
_MARKERS = {"s": "attention, no feedback", "o": "recurrent, every position kept", "D": "recurrent, small cache"}
Groups = Mapping[Setting, Sequence[InContextResult]]


def complexity_figure(group: Sequence[InContextResult]) -> Figure:
    """Perplexity against the reads of a token and against the cache, with the readers' as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), layout="constrained")
    FigureCanvasAgg(figure)  # labels are placed by their extent
    first, second = figure.subplots(1, 2, sharey=True)
    costs: tuple[Callable[[InContextResult], float], ...] = (
        lambda result: result.theory.mean_reads,
        lambda result: result.theory.cache_slots,
    )
    n = group[0].setting.context
    labels = (f"past positions read per token, mean over {n:,}", f"slots of the cache for {n:,} tokens")
    for axes, cost, label in zip((first, second), costs, labels, strict=True):
        axes.set_xscale("log", base=2)
        axes.margins(0.16, 0.1)
        for result in group:
            _point(axes, cost(result), result, color_of(result, group))
        for reader in _shown(readers(group)):
            axes.axhline(perplexity(reader.loss), color=_INK, lw=0.9, ls=_dashes(reader.name), zorder=1)
        _style(axes, label)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    for marker, kind in _MARKERS.items():
        first.plot([], [], marker, color=_PALE, label=kind)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    first.set_ylabel("perplexity on held-out documents (lower is better)", fontsize=9)
    for reader in _shown(readers(group)):
        second.annotate(_label(reader.name), (1, perplexity(reader.loss)), xycoords=("axes fraction", "data"),
                        xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=_INK,
                        annotation_clip=False)  # fmt: skip
    figure.draw_without_rendering()
    for axes, cost in zip((first, second), costs, strict=True):
        place_labels(axes, group, [cost(result) for result in group], [result.structure for result in group])
    return figure


def position_figure(group: Sequence[InContextResult]) -> Figure:
    """The loss in each range of positions: structures in color, readers in black."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels, shared_dashes

    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes, ends = figure.subplots(), []
    middles = [((first + 1) * (last + 1)) ** 0.5 for first, last in group[0].positions]
    dashes = shared_dashes({result.structure: result.by_position for result in group})
    for result in group:
        line, color = dashes.get(result.structure, "--" if _is_small(result) else "-"), color_of(result, group)
        axes.plot(middles, result.by_position, ls=line, color=color, marker=".", lw=1.5)
        ends.append((middles[-1], result.by_position[-1], result.structure, color))
    for reader in readers(group):
        axes.plot(middles, reader.by_position, ls=_dashes(reader.name), color=_INK, lw=1.1)
        ends.append((middles[-1], reader.by_position[-1], _label(reader.name), _INK))
    axes.set_xscale("log", base=2)
    axes.set_xticks(middles, [f"{first:,}–{last:,}" for first, last in group[0].positions])
    axes.xaxis.minorticks_off()
    axes.set_ylabel("nats per token, mean over seeds", fontsize=9)
    _style(axes, "position in the document")
    end_labels(axes, ends, size=8)
    return figure


def reach_figure(group: Sequence[InContextResult]) -> Figure:
    """For each structure, its loss by position, beside readers that count what is within 1, 2 and 4 hops."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    columns = 4
    figure = Figure(figsize=(13, 2.6 * -(-len(group) // columns)), layout="constrained")
    panels = list(figure.subplots(-(-len(group) // columns), columns, sharex=True, sharey=True, squeeze=False).flat)
    floor = next(reader for reader in readers(group) if reader.name == PAST)
    named: dict[Axes, list[tuple[float, float, str, str]]] = {}
    for axes, result in zip(panels, group, strict=False):
        middles = [((first + 1) * (last + 1)) ** 0.5 for first, last in result.positions]
        same: dict[tuple[float, ...], list[int]] = {}  # lines that coincide have one name
        for hops, counted in reach_lines(result).items():
            same.setdefault(tuple(counted), []).append(hops)
        for line, within in same.items():
            axes.plot(middles, line, "--", color=_SHADES[within[-1]], lw=1.2)
        axes.plot(middles, floor.by_position, color=_INK, lw=1)
        axes.plot(middles, result.by_position, color=color_of(result, group), marker=".", lw=1.8)
        named[axes] = [(middles[-1], line[-1], _hops(within), _SHADES[within[-1]]) for line, within in same.items()]
        named[axes].append((middles[-1], floor.by_position[-1], "Bayes", _INK))
        axes.set_title(result.structure, fontsize=9, color=color_of(result, group), weight="bold")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _style(axes, "")
    for axes in panels[len(group) :]:
        axes.set_visible(False)
    figure.supxlabel("position in the document", fontsize=9)
    figure.supylabel("nats per token", fontsize=9)
    figure.draw_without_rendering()  # names are placed by the height of the panels
    for axes, ends in named.items():
        end_labels(axes, ends, size=6.5)
    return figure


def _hops(within: Sequence[int]) -> str:
    return f"{', '.join(map(str, within))} hop{'s' * (within[-1] > 1)}"


def budget_figure(groups: Groups) -> Figure:
    """Nats above the floor by steps, and by the length of documents; one panel where only one of them varies."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels, shared_dashes

    panels = [(name, lines) for name, lines in _budgets(groups).items() if lines]
    figure = Figure(figsize=(2 + 5.2 * len(panels), 5), layout="constrained")
    roles = list(dict.fromkeys(result.role for group in groups.values() for result in group))
    every = {result.role: result for group in reversed(list(groups.values())) for result in group}
    named: list[list[tuple[float, float, str, str]]] = []
    for axes, (name, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        dashes = shared_dashes({role: [mean(values) for _, values in lines[role]] for role in roles if role in lines})
        named.append([])
        for role in (each for each in roles if each in lines):
            points = lines[role]
            color = color_of(every[role], list(every.values()))
            named[-1].append((points[-1][0], mean(points[-1][1]), role, color))
            axes.errorbar([x for x, _ in points], [mean(values) for _, values in points],
                          [[mean(v) - min(v) for _, v in points], [max(v) - mean(v) for _, v in points]],
                          color=color, ls=dashes.get(role, "-"), marker=".", lw=1.4, capsize=2)  # fmt: skip
        sizes = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xticks(sizes, [f"{x:,}" for x in sizes])
        axes.xaxis.minorticks_off()
        _style(axes, name)
    figure.axes[0].set_ylabel("nats per token above the floor", fontsize=9)
    last = {role for _, _, role, _ in named[-1]}
    for axes, ends in zip(figure.axes, named, strict=True):  # on the right, and elsewhere what is not named there
        shown = [end for end in ends if ends is named[-1] or end[2] not in last]
        end_labels(axes, shown, size=7.5)
    return figure


def _budgets(groups: Groups) -> dict[str, dict[str, list[tuple[int, list[float]]]]]:
    """By what varies, and role: the budget and the excess of each seed."""
    first = next(iter(groups))
    made: dict[str, dict[str, list[tuple[int, list[float]]]]] = {}
    for name, field in (("steps", "steps"), ("tokens of a document", "context")):
        same = _differing_in(field, groups)
        lines: dict[str, list[tuple[int, list[float]]]] = {}
        for setting in same:
            for result in groups[setting]:
                lines.setdefault(result.role, []).append((getattr(setting, field), result.excesses))
        steps = "" if field == "steps" or same[0].steps == first.steps else f", {same[0].steps:,} steps"
        made[name + steps] = {role: points for role, points in lines.items() if len(points) > 1}
    return made


def _differing_in(field: str, groups: Groups) -> list[Setting]:
    """The most settings that differ in this alone, in its order; those of the first setting where there is a choice."""
    alike = ([s for s in sorted(groups) if s._replace(**{field: getattr(base, field)}) == base] for base in groups)
    return max(alike, key=len)


def share_figure(groups: Groups) -> Figure:
    """How far structures go from first order to attention, by the tokens of a chain; bars from least to most."""
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import end_labels

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes, ends = figure.subplots(), []
    every = {result.structure: result for group in _by_k(groups).values() for result in group}
    for structure, any_result in every.items():
        values = [
            (k, 100 * np.array(way))
            for k, group in _by_k(groups).items()
            for result in group
            if result.structure == structure and (way := shares(result, group))
        ]
        if len(values) > 1:
            color, middles = color_of(any_result, list(every.values())), [way.mean() for _, way in values]
            spread = [
                [m - way.min() for m, (_, way) in zip(middles, values, strict=True)],
                [way.max() - m for m, (_, way) in zip(middles, values, strict=True)],
            ]
            axes.errorbar([k for k, _ in values], middles, spread, color=color, marker=".", lw=1.6, capsize=2,
                          ls="--" if _is_small(any_result) else "-")  # fmt: skip
            ends.append((values[-1][0], float(middles[-1]), structure, color))
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(_by_k(groups)), [f"{k} ({k * k} pairs)" for k in _by_k(groups)])
    axes.xaxis.minorticks_off()
    axes.set_ylabel("% of the way from first order to attention", fontsize=9)
    _style(axes, "tokens of a chain, and pairs of them to count")
    end_labels(axes, ends, size=8)
    return figure


def _by_k(groups: Groups) -> dict[int, Sequence[InContextResult]]:
    """By the tokens of a chain, in order; everything else as in the first setting."""
    base = next(iter(groups))
    return {setting.k: groups[setting] for setting in sorted(groups) if setting._replace(k=base.k) == base}


def varies_in_k(groups: Groups) -> bool:
    """Whether there is something to draw by the tokens of a chain."""
    return len(_by_k(groups)) > 1


def varies(groups: Groups) -> bool:
    """Whether there is something to draw by budget."""
    return any(_budgets(groups).values())


def _point(axes: Axes, x: float, result: InContextResult, color: str) -> None:
    values = result.perplexities
    middle = mean(values)
    marker = "s" if not result.pattern.recurrent else "D" if _is_small(result) else "o"
    axes.errorbar([x], [middle], [[middle - min(values)], [max(values) - middle]], fmt=marker, color=color, ms=7,
                  capsize=3, elinewidth=1.2, zorder=3)  # fmt: skip


def _is_small(result: InContextResult) -> bool:
    return result.theory.cache_slots < result.setting.context // 4


def _shown(every: Sequence[ReaderResult]) -> list[ReaderResult]:
    """The oracle's loss is far below any model's, and would take half of the axis."""
    return [reader for reader in every if reader.name != ORACLE]


def _label(reader: str) -> str:
    return _LABELS.get(reader, f"{reader} tokens")


def _dashes(reader: str) -> str:
    return {PAST: "-", ORACLE: ":"}.get(reader, "--")


def _style(axes: Axes, x: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.grid(color=GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8)
