"""Figure 3 of the paper from records: perplexity against the class of the reads per token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.analysis.figures.palette import GRID
from resolvent.analysis.figures.palette import INK as _INK
from resolvent.analysis.figures.palette import PALE as _PALE
from resolvent.studies.grade import mean
from resolvent.studies.language.figures import color_of, place_labels
from resolvent.studies.language.variants import Variant, variants
from resolvent.train.record import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's regimes. A width k is a constant to us, so fixed widths above one are told apart from first order here.
REGIMES = ("O(1)", "O(k)", "O(log n)", "O(√n)", "O(n)")
_KINDS = {"attention": ("s", -0.32), "recurrent": ("o", 0.0), "cache-efficient": ("D", 0.24)}  # marker, shift


_RECORDS = Path(__file__).parents[1] / "records"


def published_records_figure() -> Figure:
    """A panel for each file of records of `study pareto`, the smallest models and fewest tokens first."""
    panels = [variants(read_records(file)) for file in sorted(_RECORDS.glob("pareto-*.jsonl"))]
    return complexity_figure(sorted(panels, key=lambda panel: (panel[0].parameters, panel[0].runs[0].record.tokens)))


def regime_of(variant: Variant) -> str:
    """The class of the reads per token, one of `REGIMES`."""
    law = variant.growth[0]
    if law == "O(1)" and any(stage.farthest != 1 for stage in variant.patterns[0].stages):
        law = "O(k)"
    return law


def complexity_figure(panels: Sequence[Sequence[Variant]]) -> Figure:
    """A panel for each set of runs: the perplexity of each structure, in the column of its regime."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.5, 4.6 * len(panels)), 5.2), layout="constrained")
    FigureCanvasAgg(figure)  # names are placed by their extent
    figure.suptitle("perplexity against reads per token", fontsize=14, color=_INK, weight="bold")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, panel)
    first = figure.axes[0]
    first.set_ylabel("perplexity, validation (lower is better)", fontsize=10)
    for kind, (marker, _) in _KINDS.items():
        first.plot([], [], marker, color=_PALE, label=kind)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    figure.draw_without_rendering()
    for axes, panel in zip(figure.axes, panels, strict=True):
        place_labels(axes, panel, [across(v) for v in panel], [v.name for v in panel])
    return figure


def across(variant: Variant) -> float:
    """Where a variant stands: in the middle of its regime, attention to the left, cache-efficient ones to the right."""
    return REGIMES.index(regime_of(variant)) + _KINDS[variant.kind][1]


def _panel(axes: Axes, variants: Sequence[Variant]) -> None:
    for number in range(0, len(REGIMES), 2):  # bands tell the regimes apart
        axes.axvspan(number - 0.5, number + 0.5, color="#f4f5f7", lw=0, zorder=0)
    for variant in variants:
        middle, values = mean(variant.perplexities), variant.perplexities
        bars = [[middle - min(values)], [max(values) - middle]]
        axes.errorbar([across(variant)], [middle], bars, fmt=_KINDS[variant.kind][0], color=color_of(variant, variants),
                      ms=9, capsize=3, elinewidth=1.2, zorder=3)  # fmt: skip
    run = variants[0].runs[0].record
    size = f"{run.parameters / 1e6:.2g}M parameters, {run.tokens / 1e6:.2g}M tokens"
    axes.set_title(f"{size}, context {variants[0].context:,}", fontsize=10.5, color=_INK)
    axes.set_xticks(range(len(REGIMES)), REGIMES, fontsize=10)
    axes.set_xlim(-0.5, len(REGIMES) - 0.5)
    axes.margins(y=0.14)
    axes.tick_params(axis="y", labelsize=9)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
