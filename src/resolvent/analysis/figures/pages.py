"""Pages of panels: of a pattern's profile, of several patterns side by side, of a mask."""

from __future__ import annotations

import html
from collections.abc import Sequence

from matplotlib.figure import Figure

from resolvent.analysis.figures import panels
from resolvent.analysis.figures.palette import INK, PALE, in_order
from resolvent.analysis.figures.trade_off import trade_off
from resolvent.analysis.profile import Profile
from resolvent.errors import PatternError
from resolvent.notebook import inline_png
from resolvent.patterns import Pattern

_LARGEST_MASK_FIGURE = 2048


class NotebookFigure(Figure):
    """A figure that a notebook shows, also without pyplot, with a text for those who cannot see it."""

    def __init__(self, width: float, height: float, description: str) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        self.description = description

    def _repr_html_(self) -> str:
        return f"<img alt='{html.escape(self.description)}' style='max-width:100%' src='{inline_png(self, 100)}'>"


def profile_figure(profile: Profile) -> NotebookFigure:
    """One page for a pattern: mask, cache over time, hops, load of a routing, growth."""
    p, n = profile.pattern, min(profile.n, 128)
    shown = f"{p}: positions read, held and reached on {n} tokens, load of a copy of {profile.n:,}, growth of the cost"
    figure = NotebookFigure(13, 8, shown)
    figure.suptitle(str(p), fontsize=15, color=INK, weight="bold")
    grid = figure.add_gridspec(2, 3)
    panels.mask(figure.add_subplot(grid[0, 0]), p, min(n, 64))
    panels.cache(figure.add_subplot(grid[0, 1]), p, n)
    panels.hops(figure.add_subplot(grid[0, 2]), p, n)
    panels.load(figure.add_subplot(grid[1, :2]), profile.congestion, profile.n)
    growth_axes = figure.add_subplot(grid[1, 2])
    panels.growth(growth_axes, {"reads per token": (p, "reads"), "cache slots": (p, "slots")})
    growth_axes.set_title("growth of cost and cache", fontsize=11, color=INK)
    return figure


def comparison_figure(profiles: Sequence[Profile]) -> NotebookFigure:
    """Several patterns side by side: growth of reads and cache, and the cache–congestion trade-off."""
    names = in_order(str(profile.pattern) for profile in profiles)
    patterns = [next(p.pattern for p in profiles if str(p.pattern) == name) for name in names]
    spoken = f"growth of reads and cache, and cache against congestion, of {', '.join(names)}"
    figure = NotebookFigure(16, 5.4, spoken)
    reads_axes, slots_axes, trade_axes = figure.subplots(1, 3)
    panels.growth(reads_axes, {str(p): (p, "reads") for p in patterns})
    panels.growth(slots_axes, {str(p): (p, "slots") for p in patterns})
    reads_axes.set_title("growth of reads per token (time)", fontsize=11, color=INK)
    slots_axes.set_title("growth of cache slots (memory)", fontsize=11, color=INK)
    trade_off(trade_axes, profiles)
    figure.supxlabel(
        "Low is cheap. Lines in several colors are structures that coincide; dashed ones are cache-efficient. "
        "No pattern lies in the gray.", fontsize=9.5, color=PALE,
    )  # fmt: skip
    return figure


def mask_figure(p: Pattern, n: int) -> NotebookFigure:
    """A figure of the mask of A and B."""
    if n > _LARGEST_MASK_FIGURE:
        raise PatternError(f"expected n ≤ {_LARGEST_MASK_FIGURE:,} for a figure of the mask, got {n:,}.")
    figure = NotebookFigure(6, 6.4, f"entries of A and B of {p} on {n} tokens")
    figure.suptitle(str(p), fontsize=13, color=INK, weight="bold")
    panels.mask(figure.subplots(), p, n)
    return figure
