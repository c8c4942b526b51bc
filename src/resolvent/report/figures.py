"""Figures as files, and figures of benchmarks: time or memory against the number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resolvent.analysis.figures.labels import end_labels
from resolvent.analysis.figures.palette import INK, color_of_structure, in_order
from resolvent.analysis.profile import plural
from resolvent.bench.record import BenchRecord, Measurement

_FORMATS = (".png", ".pdf", ".svg")
_NARROW = 4  # times the least: values within are shown from zero on, others by their logarithms
_UNITS = {"generate": "ms per token", "training": "ms per step"}
_LENGTHS = {"generate": "tokens in the cache", "training": "tokens of the sequence"}


def require_format(path: str | Path) -> Path:
    """Raise an error if figures cannot be written to a file of this name."""
    if Path(path).suffix not in _FORMATS:
        raise ValueError(f"expected a file name that ends in {', '.join(_FORMATS)}, got '{Path(path)}'.")
    return Path(path)


def save(figure: Figure, path: str | Path, *, colors: int | None = None) -> Path:
    """Write a figure in the format of its suffix; missing folders are created.

    With `colors`, a PNG has at most so many: line drawings look the same, in a third of the bytes.
    """
    path = require_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")
    if colors is not None and path.suffix == ".png":
        from PIL import Image  # which matplotlib needs anyway

        with Image.open(path) as image:
            reduced = image.convert("RGB").quantize(colors)
        reduced.save(path, optimize=True)
    return path


@dataclass(frozen=True)
class Panel:
    """A workload of a record; its times, or the memory that it takes at its peak."""

    record: BenchRecord
    workload: str
    memory: bool = False

    @property
    def measurements(self) -> list[Measurement]:
        own = [m for m in self.record.measurements if m.workload == self.workload]
        return [m for m in own if m.peak_bytes is not None] if self.memory else own

    @property
    def title(self) -> str:
        what = {"generate": "generating, ", "training": "training step, "}.get(self.record.kind, "")
        return f"{what}{self.workload}" + (", memory" if self.memory else "")


def record_panels(record: BenchRecord) -> list[Panel]:
    """All that a record can show: a panel for each workload, and one of memory where that was measured."""
    panels = [Panel(record, workload, memory) for memory in (False, True) for workload in record.workloads]
    return [panel for panel in panels if panel.measurements]


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """Side by side, three in a row; a case has the same color in all of them, and peers are dashed."""
    width = min(len(panels), 3)
    height = -(-len(panels) // width)
    figure = Figure(figsize=(1.6 + 3.9 * width, 0.5 + 3.6 * height), layout="constrained")
    host = panels[0].record.host
    shapes = " and ".join(dict.fromkeys(panel.record.shape for panel in panels))
    figure.suptitle(f"{shapes}, {host.cpu}, {plural(host.threads, 'thread')}", fontsize=12, color=INK, weight="bold")
    cases = in_order(m.case for panel in panels for m in panel.measurements)
    colors = {case: color_of_structure(case, cases) for case in cases}
    for axes, panel in zip(figure.subplots(height, width, squeeze=False).flat, panels, strict=False):
        draw_panel(axes, panel, colors)
    for axes in figure.axes[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(figure.axes, panels, strict=False):
        _name_lines(axes, panel, colors)
    return figure


def _name_lines(axes: Axes, panel: Panel, colors: dict[str, str]) -> None:
    """Each case where its line ends; of one length, beside its point."""
    ends = []
    for case in in_order(m.case for m in panel.measurements):
        last = max((m for m in panel.measurements if m.case == case), key=lambda m: m.n)
        value = (last.peak_bytes or 0) / 2**20 if panel.memory else 1e3 * last.seconds
        ends.append((last.n, value, case, colors[case]))
    end_labels(axes, ends)


def draw_panel(axes: Axes, panel: Panel, colors: dict[str, str]) -> None:
    """One line for each case, with the range over the rounds; of one length, points beside each other."""
    sizes = sorted({m.n for m in panel.measurements})
    highest, lowest = 0.0, np.inf
    cases = in_order(m.case for m in panel.measurements)
    for number, case in enumerate(cases):
        shift = 2 ** (0.1 * (number - (len(cases) - 1) / 2)) if len(sizes) == 1 else 1
        own = sorted((m for m in panel.measurements if m.case == case), key=lambda m: m.n)
        if panel.memory:
            values = np.array([(m.peak_bytes or 0) / 2**20 for m in own])
            ranges = np.zeros((2, len(own)))
        else:
            values = 1e3 * np.array([m.seconds for m in own])
            ranges = np.abs(1e3 * np.array([(m.least, m.most) for m in own]).T - values)
        highest, lowest = max(highest, float((values + ranges[1]).max())), min(lowest, float(values.min()))
        axes.errorbar(
            [m.n * shift for m in own],
            values,
            ranges,
            color=colors[case],
            linestyle="--" if own[0].peer else "-",
            marker="o",
            markersize=4,
            linewidth=1.8,
            elinewidth=0.9,
            capsize=2.5,
            label=case,
        )
    axes.set_xscale("log", base=2)
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 1.5, sizes[0] * 1.5)
        axes.xaxis.minorticks_off()
    axes.set_xticks(sizes, [f"{n:,}" if len(sizes) <= 3 or n % 1024 else f"{n // 1024}k" for n in sizes])
    if highest > _NARROW * lowest > 0:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else "")
    else:
        axes.set_ylim(0, 1.05 * highest or 1.0)  # small shapes may hold nothing that can be measured
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(panel.title, fontsize=11, color=INK)
    axes.set_xlabel(_LENGTHS.get(panel.record.kind, "tokens"), fontsize=9)
    axes.set_ylabel("peak, MiB" if panel.memory else _UNITS.get(panel.record.kind, "ms"), fontsize=9)
    axes.tick_params(labelsize=8, which="both")
