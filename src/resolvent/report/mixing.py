"""What a trained layer does with a text: figures of A, B and T, and a table of diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from rich.table import Table

from resolvent.analysis.figures.palette import INK, NAVY

if TYPE_CHECKING:
    import numpy.typing as npt

    from resolvent.model.diagnostics import LayerDiagnostics

    Matrix = npt.NDArray[np.float64]

_MOST_LABELS = 40  # tokens up to which the axes are labeled


def mixing_figure(
    a: Matrix, b: Matrix, t: Matrix, spectrum: Sequence[float], tokens: Sequence[str], title: str
) -> Figure:
    """A, B and T = (I - B)^-1 A of one head, and the share of T by hops. Rows are readers, columns positions read."""
    figure = Figure(figsize=(13, 4.1), layout="constrained")
    figure.suptitle(title, fontsize=13, color=INK, weight="bold")
    columns = figure.subplots(1, 4, width_ratios=[1, 1, 1, 0.8])
    for axes, matrix, name in zip(columns, (a, b, t), ("A: direct", "B: feedback", "T = (I - B)⁻¹A"), strict=False):
        _matrix(axes, matrix, name, tokens)
    _spectrum(columns[3], spectrum)
    return figure


def _matrix(axes: Axes, matrix: Matrix, title: str, tokens: Sequence[str]) -> None:
    top = max(float(np.abs(matrix).max()), 1e-12)
    # Most weights are small: a square-root scale shows them, too. Entries above the diagonal are masked.
    shown = np.ma.masked_array(np.abs(matrix), np.triu(np.ones_like(matrix, dtype=bool), 1))
    colors = matplotlib.colormaps["magma_r"].with_extremes(bad="#eef0f3")
    image = axes.imshow(shown, cmap=colors, norm=PowerNorm(0.5, 0, top), interpolation="nearest")
    axes.set_title(title, fontsize=11, color=INK)
    if len(tokens) <= _MOST_LABELS:
        rotation = 90 if max(map(len, tokens)) > 1 else 0
        axes.set_xticks(range(len(tokens)), tokens, fontsize=6, family="monospace", rotation=rotation)
        axes.set_yticks(range(len(tokens)), tokens, fontsize=6, family="monospace")
    axes.tick_params(length=0)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.75, pad=0.02)
    bar.ax.tick_params(labelsize=7)


def _spectrum(axes: Axes, spectrum: Sequence[float]) -> None:
    labels = [str(k) for k in range(len(spectrum) - 1)] + [f"{len(spectrum) - 1}+"]
    axes.bar(labels, spectrum, color=NAVY)
    axes.set_title("share of T by hops", fontsize=11, color=INK)
    axes.set_xlabel("feedback steps", fontsize=9)
    axes.tick_params(labelsize=6)
    axes.set_box_aspect(1.1)
    axes.spines[["top", "right"]].set_visible(False)


def diagnostics_table(layers: Sequence[LayerDiagnostics]) -> Table:
    """One row per layer: means over heads, and extremes."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer")
    table.add_column("mixer", overflow="fold")
    for name in ("gate", "gate range", "|T1 - 1|", "‖(I-B)⁻¹‖", "feedback"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in layers:
        gates = layer.gates
        mean = "" if gates is None else f"{np.mean(gates.mean):.2f}"
        gate_range = "" if gates is None else f"{min(gates.min):.2f} … {max(gates.max):.2f}"
        table.add_row(
            str(layer.layer),
            f"{' | '.join(layer.patterns)}, {layer.rule}",
            mean,
            gate_range,
            f"{max(layer.row_sum_drift):.0e}",
            f"{max(layer.resolvent_norm):.2f}",
            f"{mean_hops(layer.hop_spectrum):.2f} ×",
        )
    return table


def mean_hops(spectra: Sequence[Sequence[float]]) -> float:
    """The mean number of feedback steps; the last entry of a spectrum, which holds the rest, counts as exact."""
    shares = np.asarray(spectra)
    return float((shares * np.arange(shares.shape[1])).sum(1).mean())
