"""Figures of runs on text: perplexity against cost, rules side by side, perplexity along the context."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from resolvent.analysis.figures.palette import GRID, RULE, color_of_structure
from resolvent.analysis.figures.palette import INK as _INK
from resolvent.analysis.figures.palette import PALE as _PALE
from resolvent.studies.grade import mean
from resolvent.studies.language.variants import Variant
from resolvent.text.batches import perplexity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What to see in each figure.
PARETO = "Lower left is better: the line joins what nothing beats at its cost, in time or in memory."
RULES = "A dot is a seed, a bar their mean: where dots overlap, rules are not told apart."
_MARKERS = {"attention": "s", "recurrent": "o", "cache-efficient": "D"}


class Drawn(Protocol):
    """What a point stands for: a structure, and the perplexity of each seed."""

    @property
    def structure(self) -> str: ...

    @property
    def perplexities(self) -> list[float]: ...


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, perplexity) that no other beats in one without being worse in the other.

    From the cheapest on. Of points that are the same, all are on it.
    """
    kept = [
        number
        for number, (cost, height) in enumerate(points)
        if not any(c <= cost and h <= height and (c, h) != (cost, height) for c, h in points)
    ]
    return sorted(kept, key=lambda number: points[number])


def on_frontier(variants: Sequence[Variant], cost: Callable[[Variant], float]) -> list[Variant]:
    """Variants that none beats in mean perplexity at no higher a cost."""
    return [variants[number] for number in frontier([(cost(v), mean(v.perplexities)) for v in variants])]


def pareto_figure(variants: Sequence[Variant]) -> Figure:
    """Perplexity, and bits per byte, against multiply-adds of mixing per token and against the cache."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.4), layout="constrained")
    FigureCanvasAgg(figure)  # labels are placed by their extent
    first, second = figure.subplots(1, 2, sharey=True)
    _points(first, variants, lambda v: v.mixing_madds)
    _points(second, variants, lambda v: v.cache_bytes / 1024)
    n = variants[0].context
    label_axes(first, f"multiply-adds of mixing per token, contexts of {n:,}", "perplexity, validation")
    label_axes(second, f"decode cache for {n:,} tokens, KiB", "")
    right = second.secondary_yaxis("right", functions=_bits_and_back(variants))
    right.set_ylabel("bits per byte", fontsize=9)
    right.tick_params(labelsize=8)
    for kind in dict.fromkeys(variant.kind for variant in variants):
        first.plot([], [], _MARKERS[kind], color=_PALE, label=kind)
    first.plot([], [], color=_INK, lw=1, label="Pareto frontier")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.draw_without_rendering()
    _label(first, variants, lambda v: v.mixing_madds, [v.growth[0] for v in variants])
    _label(second, variants, lambda v: v.cache_bytes / 1024, [v.growth[1] for v in variants])
    return figure


def rules_figure(variants: Sequence[Variant]) -> Figure:
    """Every seed of every rule, structure by structure, with what the mean gains or loses against the first rule."""
    from matplotlib.figure import Figure

    ordered = [
        v for structure in dict.fromkeys(v.structure for v in variants) for v in variants if v.structure == structure
    ]
    figure = Figure(figsize=(8.6, 1.3 + 0.42 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    for row, variant in enumerate(ordered):
        first = next(v for v in ordered if v.structure == variant.structure)
        color, values = color_of(variant, ordered), variant.perplexities
        axes.plot([min(values), max(values)], [row, row], color=color, lw=2, alpha=0.5)
        axes.plot(values, [row] * len(values), "o", color=color, ms=4, alpha=0.6)
        axes.plot(mean(values), row, "|", color=color, ms=17, mew=2.2)
        if variant is not first:
            change = mean(values) / mean(first.perplexities) - 1
            axes.annotate(f"{change:+.1%}", (max(values), row), xytext=(10, 0), textcoords="offset points",
                          va="center", fontsize=8, color=_PALE)  # fmt: skip
    axes.set_yticks(range(len(ordered)), [f"{v.structure} · {v.rule}" for v in ordered])
    axes.set_ylim(len(ordered) - 0.4, -0.6)
    axes.margins(x=0.12)
    for row in range(1, len(ordered)):
        if ordered[row].structure != ordered[row - 1].structure:
            axes.axhline(row - 0.5, color=RULE, lw=0.8)
    label_axes(axes, "perplexity, validation: every seed, and the mean", "")
    axes.tick_params(axis="y", labelsize=9)
    return figure


def length_figure(variants: Sequence[Variant]) -> Figure:
    """Perplexity by position in the longest contexts, and by the length of the context; bands from least to most."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    from resolvent.analysis.figures.labels import end_labels

    figure = Figure(figsize=(13, 5), layout="constrained")
    first, second = figure.subplots(1, 2, sharey=True)
    n = variants[0].context
    bands(first, variants, variants, by_position)
    ends = bands(second, variants, variants, lambda v: [(c, v.at_length(c)) for c in v.lengths])
    for axes in (first, second):
        axes.axvline(n, color=_INK, lw=0.9, ls=":")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.set_xscale("log", base=2)
    lengths = sorted({length for variant in variants for length in variant.lengths})
    second.set_xticks(lengths, [f"{length:,}" for length in lengths])
    first.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    second.xaxis.minorticks_off()
    first.annotate("trained length", (n, 0.99), xycoords=("data", "axes fraction"), xytext=(4, 0),
                   textcoords="offset points", va="top", fontsize=8, color=_PALE)  # fmt: skip
    label_axes(first, f"position in contexts of {lengths[-1]:,} tokens", "perplexity, validation")
    label_axes(second, "length of the context, all positions", "")
    end_labels(second, ends)
    return figure


def by_position(variant: Variant) -> list[tuple[float, list[float]]]:
    """The middle of each range of positions in the longest contexts, and the perplexities of the seeds there."""
    longest = [run.longest.by_position for run in variant.runs if run.longest is not None]
    return [
        ((same[0].first + same[0].last + 2) / 2, [perplexity(each.value) for each in same])
        for same in zip(*longest, strict=True)
    ]


def bands(
    axes: Axes,
    variants: Sequence[Variant],
    among: Sequence[Variant],
    points_of: Callable[[Variant], list[tuple[float, list[float]]]],
) -> list[tuple[float, float, str, str]]:
    """Means over seeds along x, and bands from the least to the most; dashes where a cache is efficient.

    Lines that coincide share their dashes. Returns the ends of the lines, for their names.
    """
    from resolvent.analysis.figures.labels import shared_dashes

    points = {variant.name: points_of(variant) for variant in variants}
    means = {name: [mean(values) for _, values in own] for name, own in points.items() if own}
    dashes, ends = shared_dashes(means), []
    for variant in (each for each in variants if each.name in means):
        own, color = points[variant.name], color_of(variant, among)
        xs, usual = [x for x, _ in own], "--" if variant.kind == "cache-efficient" else "-"
        axes.plot(xs, means[variant.name], ls=dashes.get(variant.name, usual), color=color, marker=".", lw=1.5)
        axes.fill_between(xs, [min(v) for _, v in own], [max(v) for _, v in own], color=color, alpha=0.15, lw=0)
        ends.append((xs[-1], means[variant.name][-1], variant.name, color))
    return ends


def color_of(variant: Drawn, among: Sequence[Drawn]) -> str:
    """The paper's structures have the same colors in all figures."""
    return color_of_structure(variant.structure, [each.structure for each in among])


def _points(axes: Axes, variants: Sequence[Variant], cost: Callable[[Variant], float]) -> None:
    """Means with bars from the least to the most, and the frontier as stairs: the best that a budget can buy."""
    axes.set_xscale("log")
    axes.margins(0.18, 0.12)
    for variant in variants:
        values, color = variant.perplexities, color_of(variant, variants)
        middle = mean(values)
        bars = [[middle - min(values)], [max(values) - middle]]
        axes.errorbar([cost(variant)], [middle], bars, fmt=_MARKERS[variant.kind], color=color, ms=7, capsize=3,
                      elinewidth=1.2, zorder=3)  # fmt: skip
    axes.plot(*zip(*_stairs(variants, cost), strict=True), color=_INK, lw=1, alpha=0.7, zorder=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _stairs(variants: Sequence[Variant], cost: Callable[[Variant], float]) -> list[tuple[float, float]]:
    best = [(cost(v), mean(v.perplexities)) for v in on_frontier(variants, cost)]
    return [best[0], *(corner for (_, high), (x, y) in pairwise(best) for corner in ((x, high), (x, y)))]


def _label(axes: Axes, variants: Sequence[Variant], cost: Callable[[Variant], float], growth: Sequence[str]) -> None:
    names = [f"{variant.name}  {law}" for variant, law in zip(variants, growth, strict=True)]
    place_labels(axes, variants, [cost(v) for v in variants], names, list(pairwise(_stairs(variants, cost))))


def place_labels(
    axes: Axes,
    variants: Sequence[Drawn],
    across: Sequence[float],
    names: Sequence[str],
    lines: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> None:
    """Name the point of each variant, at its mean perplexity, where no point, bar, line or other name is."""
    from resolvent.analysis.figures.labels import name_points

    at = [(x, mean(v.perplexities)) for x, v in zip(across, variants, strict=True)]
    bars = [((x, min(v.perplexities)), (x, max(v.perplexities))) for x, v in zip(across, variants, strict=True)]
    name_points(axes, at, names, [*bars, *lines])


def _bits_and_back(variants: Sequence[Variant]) -> tuple[Callable[[npt.ArrayLike], npt.ArrayLike], ...]:
    """Bits per byte are the logarithm of perplexity times tokens per byte, the same for all runs on a text."""
    factor = variants[0].bits[0] / math.log(variants[0].perplexities[0])
    return (
        lambda perplexity: np.log(np.maximum(perplexity, 1e-9)) * factor,
        lambda bits: np.exp(np.asarray(bits) / factor),
    )


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Labels, and what all panels look like."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.grid(color=GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=8)
