"""Figures of benchmarks, and figures as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent.analysis.figures.labels import end_labels
from resolvent.analysis.figures.palette import BLUE, INK, NAVY, color_of_structure, in_order
from resolvent.analysis.figures.panels import label
from resolvent.bench.record import PASSES

if TYPE_CHECKING:
    from resolvent.bench.record import Pass
    from resolvent.bench.results import Report

_FORMATS = (".png", ".pdf", ".svg")


def save(figure: Figure, path: str | Path, *, colors: int | None = None) -> Path:
    """Write a figure in the format of its suffix; missing folders are created.

    With `colors`, a PNG has at most so many: line drawings look the same, in a third of the bytes.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"expected a file name that ends in {', '.join(_FORMATS)}, got '{path}'.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    if colors is not None and path.suffix == ".png":
        from PIL import Image  # which matplotlib needs anyway

        with Image.open(path) as image:
            reduced = image.convert("RGB").quantize(colors)
        reduced.save(path, optimize=True)
    return path


def speed_figure(report: Report) -> Figure:
    """A benchmark: times against n for several lengths, speedups for one."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    shape = f"batch {report.batch}, {report.heads} heads of {report.head_dim}, {report.threads} threads"
    several = len(report.lengths) > 1
    length = "" if several else f"n = {report.lengths[0].n:,}, "
    figure.suptitle(f"{length}{shape}", fontsize=13, color=INK, weight="bold")
    draw: Callable[[Axes, Report, Pass], None] = times if several else speedups
    panels = figure.subplots(1, 2, sharey=True)
    draw(panels[0], report, "forward")
    draw(panels[1], report, "both")
    if several:
        panels[1].set_ylabel("")
    return figure


def times(axes: Axes, report: Report, which: Pass) -> None:
    """Milliseconds against n, one line per case with the range over rounds; patterns solid, peers dashed."""
    timings = [(length.n, timing) for length in report.lengths for timing in length.timings]
    cases, ends = in_order(timing.case for _, timing in timings), []
    for case in cases:
        of_case = [(n, timing) for n, timing in timings if timing.case == case]
        measured = [(n, passed) for n, timing in of_case if (passed := timing.of(which)) is not None]
        if measured:
            medians = np.array([passed.ms for _, passed in measured])
            ranges = np.array([passed.range_ms for _, passed in measured])
            axes.errorbar(
                [n for n, _ in measured],
                medians,
                np.abs(ranges - medians[:, None]).T,
                color=(color := color_of_structure(case, cases)),
                linestyle="--" if of_case[0][1].peer else "-",
                marker="o",
                markersize=4,
                linewidth=1.8,
                elinewidth=0.9,
                capsize=2.5,
                label=case,
            )
            ends.append((measured[-1][0], float(medians[-1]), case, color))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = [length.n for length in report.lengths]
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    label(axes, PASSES[which], "tokens n", "milliseconds (median, range)")
    end_labels(axes, ends)


def speedups(axes: Axes, report: Report, which: Pass) -> None:
    """The speedup of each case over the yardstick, at one length."""
    timings = report.lengths[0].timings
    passes = [timing.of(which) for timing in timings]
    values = [None if passed is None else passed.speedup for passed in passes]
    colors = [BLUE if timing.peer else NAVY for timing in timings]
    bars = axes.barh([timing.case for timing in timings], [value or 0 for value in values], color=colors)
    labels = ["not measured" if value is None else f"{value:.{1 if value >= 1 else 2}f}" for value in values]
    background = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.bar_label(bars, labels, padding=4, fontsize=9, color=INK, bbox=background)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle="--", zorder=0.5)
    axes.set_xlim(0, 1.15 * max([1.0, *(value for value in values if value)]))
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    label(axes, PASSES[which], f"speedup over {report.yardstick}", "")
    axes.tick_params(axis="y", labelsize=10)
