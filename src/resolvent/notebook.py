"""Small tables and drawings in HTML, with which values show themselves in notebooks: on light pages and on dark ones.

Text has the color of the page, lines and empty cells a share of it. All text is escaped.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0"
_CELL = "padding:.2em .8em .2em 0;vertical-align:top"
_NOTE = "opacity:.75;font-size:90%"
_COLORS = {"A and B": "currentColor", "A only": "#7aaae4", "B only": "#c9550a"}  # as in figures


def table(
    title: str,
    rows: Iterable[Sequence[str]],
    *,
    head: Sequence[str] = (),
    notes: Iterable[str] = (),
    words: int = 1,
) -> str:
    """A title, rows of text and notes below. The first `words` columns are aligned left, the others right."""
    sides = ["left" if column < words else "right" for column in range(len(head))] if head else []
    names = "".join(_cell("th", name, side) for name, side in zip(head, sides, strict=True))
    body = [names, *("".join(_cells(row, sides)) for row in rows)]
    lines = "".join(f"<tr>{line}</tr>" for line in body if line)
    below = "".join(f"<div style='{_NOTE}'>{html.escape(note)}</div>" for note in notes)
    return f"<div><b>{html.escape(title)}</b><table style='{_TABLE}'><tbody>{lines}</tbody></table>{below}</div>"


def beside(*blocks: str) -> str:
    """Blocks next to each other, or below where the page is narrow."""
    style = "display:flex;flex-wrap:wrap;gap:1.5em;align-items:center"
    return f"<div style='{style}'>{''.join(blocks)}</div>"


def drawing(cells: Mapping[str, Iterable[tuple[int, int]]], n: int, title: str) -> str:
    """The entries of A and B on n tokens: (row, column) of "A and B", "A only" and "B only", on a gray triangle."""
    size = 10
    triangle = ((i, j) for i in range(n) for j in range(i + 1))
    paths = f"<path fill='currentColor' opacity='.1' d='{_squares(triangle, size)}'/>"
    entries = {name: list(places) for name, places in cells.items()}
    shown = [name for name in _COLORS if entries.get(name)]
    for name in shown:
        paths += f"<path fill='{_COLORS[name]}' d='{_squares(entries[name], size)}'/>"
    legend = " &nbsp; ".join(f"<span style='color:{_COLORS[name]}'>■</span>&nbsp;{name}" for name in shown)
    return f"<div>{_svg(paths, n * size, n * size, title, 180)}<div style='{_NOTE}'>{legend}</div></div>"


def curve(points: Sequence[tuple[float, float]], title: str, x: str, y: str) -> str:
    """A line through points (x, y), with the extremes of both written at the axes; nothing if fewer than two."""
    finite = [point for point in points if all(map(math.isfinite, point))]
    if len(finite) < 2:
        return ""
    columns, values = zip(*finite, strict=True)
    left, right, low, high = min(columns), max(columns), min(values), max(values)
    wide, tall = 220, 90
    scaled = (
        f"{40 + wide * (at - left) / (right - left or 1):.1f},{8 + tall * (high - value) / (high - low or 1):.1f}"
        for at, value in finite
    )
    axes = f"<path d='M40 8V{tall + 8}H{wide + 40}' fill='none' stroke='currentColor' opacity='.4'/>"
    line = f"<polyline points='{' '.join(scaled)}' fill='none' stroke='{_COLORS['A only']}' stroke-width='2'/>"
    labels = (
        _text(36, 14, f"{high:.3g}", "end") + _text(36, tall + 8, f"{low:.3g}", "end")
        + _text(40, tall + 22, f"{left:,.0f}", "start") + _text(wide + 40, tall + 22, f"{right:,.0f}", "end")
        + _text(40 + wide / 2, tall + 22, f"{y} by {x}", "middle")
    )  # fmt: skip
    return _svg(axes + line + labels, wide + 44, tall + 28, title, wide + 44)


def inline_png(figure: Figure, dpi: int = 130) -> str:
    """A figure as the address of an image that holds all of it."""
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=dpi, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(memory.getvalue()).decode()


def kib(size: int) -> str:
    """Bytes as people read them."""
    return f"{size:,} bytes" if size < 1024 else f"{size / 1024:,.1f} KiB"


def _cells(row: Sequence[str], sides: Sequence[str]) -> Iterable[str]:
    """Of a row; without a head, the first is a name and the others are what there is to say."""
    return (
        _cell("td" if sides or column else "th", text, sides[column] if sides else "left")
        for column, text in enumerate(row)
    )


def _cell(tag: str, text: str, side: str) -> str:
    scope = " scope='row'" if tag == "th" and side == "left" else ""
    weight = ";font-weight:600" if tag == "th" else ""
    return f"<{tag}{scope} style='{_CELL};text-align:{side};{_LINE}{weight}'>{html.escape(text)}</{tag}>"


def _squares(cells: Iterable[tuple[int, int]], size: int) -> str:
    side = size - 1
    return "".join(f"M{size * j} {size * i}h{side}v{side}h-{side}z" for i, j in cells)


def _text(x: float, y: float, content: str, anchor: str) -> str:
    style = "fill='currentColor' font-size='10' font-family='sans-serif'"
    return f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' {style}>{html.escape(content)}</text>"


def _svg(content: str, width: int, height: int, title: str, shown: int) -> str:
    """With a text for those who cannot see it."""
    name = html.escape(title)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{name}' width='{shown}' "
        f"viewBox='0 0 {width} {height}'><title>{name}</title>{content}</svg>"
    )
