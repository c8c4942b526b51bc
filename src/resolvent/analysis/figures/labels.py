"""Names at the ends of lines instead of a legend, apart from each other; and lines that coincide, told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

_POINTS = 72  # per inch
_DASH = 5.0  # in widths of a line


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]], *, size: float = 8.5) -> None:
    """Name lines to the right of the axes, in their colors: (x, y, name, color) of each end. Call it last.

    Names are as near to their ends as the others allow; of lines that coincide, the first is named on top.
    """
    if not ends:
        return
    gap = 1.25 * size * axes.figure.dpi / _POINTS / axes.bbox.height
    heights = [_height(axes, x, y) for x, y, _, _ in ends]
    moved = spread(heights, gap)
    for (_, _, name, color), height in zip(ends, moved, strict=True):
        axes.annotate(name, (1.015, height), xycoords="axes fraction", color=color, fontsize=size, va="center",
                      weight="bold", annotation_clip=False)  # fmt: skip


def _height(axes: Axes, x: float, y: float) -> float:
    """As a share of the axes, whatever their scale."""
    _, height = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(height)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights at least a gap apart, in the same order, each group around where it was; of equals the first on top.

    >>> spread([0.5, 0.5, 0.9], 0.25)
    [0.625, 0.375, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda index: (heights[index], -index))
    groups: list[list[int]] = []
    centers: list[float] = []
    for index in order:
        groups.append([index])
        centers.append(heights[index])
        while len(groups) > 1 and centers[-1] - centers[-2] < gap * (len(groups[-1]) + len(groups[-2])) / 2:
            groups[-2:] = [groups[-2] + groups[-1]]
            centers[-2:] = [sum(heights[i] for i in groups[-1]) / len(groups[-1])]
    moved = [0.0] * len(heights)
    for group, center in zip(groups, centers, strict=True):
        for number, index in enumerate(group):
            moved[index] = center + gap * (number - (len(group) - 1) / 2)
    return moved


def shared_dashes(curves: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Dashes for curves that coincide with others, so that each shows: an offset, and lengths on and off.

    >>> shared_dashes({"a": [1, 2], "b": [1, 2], "c": [1, 3]})
    {'a': (0.0, (5.0, 5.0)), 'b': (5.0, (5.0, 5.0))}
    """
    same: dict[tuple[float, ...], list[str]] = {}
    for name, values in curves.items():
        same.setdefault(tuple(values), []).append(name)
    return {
        name: (_DASH * number, (_DASH, _DASH * (len(group) - 1)))
        for group in same.values()
        if len(group) > 1
        for number, name in enumerate(group)
    }
