"""The reach of a text: a table for terminals, and a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resolvent.analysis.figures.palette import GRID, INK, NAVY
from resolvent.text import Reach

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


def reach_table(offered: Reach) -> Table:
    """Losses by window, and what each gains over the trigram model and over the window before."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("window", "nats per token", "bits per byte", "gain", "over the one before"):
        table.add_column(name, justify="right")
    table.add_row("none", f"{offered.trigram:.3f}", f"{offered.bits_per_byte(offered.trigram):.3f}", "", "")
    before = offered.trigram
    for each in offered.windows:
        table.add_row(
            f"{each.window:,}",
            f"{each.loss:.3f}",
            f"{offered.bits_per_byte(each.loss):.3f}",
            f"{offered.trigram - each.loss:+.3f}",
            f"{before - each.loss:+.3f}",
        )
        before = each.loss
    return table


def reach_figure(offered: Reach, title: str) -> Figure:
    """What the cache gains over the trigram model, in nats per token and in bits per byte, as its window grows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    windows = [each.window for each in offered.windows]
    gains = [offered.trigram - each.loss for each in offered.windows]
    axes.axvspan(offered.near, offered.far, color="#f1f4f8", lw=0)
    axes.plot(windows, gains, "o-", color=NAVY, lw=1.8, ms=5)
    nats = offered.gain(offered.near, offered.far)
    axes.annotate(
        f"{nats:.2f} nats per token beyond {offered.near} tokens",
        ((offered.near * offered.far) ** 0.5, 0.04),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=9,
        color=INK,
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(windows, [f"{window:,}" for window in windows])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("window of the cache, tokens", fontsize=9)
    axes.set_ylabel("gain over a trigram model, nats per token", fontsize=9)
    axes.set_title(title, fontsize=11, color=INK, weight="bold", loc="left")
    unit = offered.bits_per_byte(1.0)
    right = axes.secondary_yaxis(
        "right", functions=(lambda nats: np.asarray(nats) * unit, lambda bits: np.asarray(bits) / unit)
    )
    right.set_ylabel("bits per byte", fontsize=9)
    axes.grid(color=GRID, lw=0.7)
    axes.spines["top"].set_visible(False)
    for each in (axes, right):
        each.tick_params(labelsize=8)
    return figure
