"""Names at the ends of lines and beside points instead of a legend, apart from each other.

And lines and points that coincide, told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from resolvent.analysis.figures.palette import INK

_POINTS = 72  # per inch
_DASH = 5.0  # in widths of a line
_FAR = 14  # points of type: from there on, a line leads from a point to its name
# Offsets of a name from its point, in points of type: the first that is free is taken, or covers the least.
_OFFSETS = [
    (9 * x * far, 9 * y * far)
    for far in (1, 1.6, 2.4, 3.6, 5, 7, 9)
    for x, y in ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1.4), (0, -1.4))
]

Place = tuple[float, float]


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
        axes.annotate(
            name,
            (1.015, height),
            xycoords="axes fraction",
            color=color,
            fontsize=size,
            va="center",
            weight="bold",
            annotation_clip=False,
        )


def _height(axes: Axes, x: float, y: float) -> float:
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


def name_points(
    axes: Axes,
    points: Sequence[Place],
    names: Sequence[str],
    lines: Sequence[tuple[Place, Place]] = (),
    *,
    size: float = 8,
) -> None:
    """Name points where no point, line or other name is. Call it last, when the figure has its layout."""
    from matplotlib.patheffects import withStroke

    taken = [_box(axes, point, point, 7) for point in points] + [_box(axes, *line, 2) for line in lines]
    for name, point in zip(names, points, strict=True):
        label = axes.annotate(
            name,
            point,
            xytext=(0, 0),
            fontsize=size,
            color=INK,
            textcoords="offset points",
            va="center",
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
        label.set_in_layout(False)  # it is within the axes
        offset = min(_OFFSETS, key=lambda offset: _covered(_moved(label, offset), axes, taken))
        taken.append(_moved(label, offset))
        if max(map(abs, offset)) > _FAR:
            axes.annotate(
                "",
                point,
                xytext=offset,
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": "#b8bec7", "lw": 0.7},
            )


def _moved(label: Annotation, offset: Place) -> Bbox:
    label.set_position(offset)
    label.set_horizontalalignment("left" if offset[0] > 0 else "right" if offset[0] < 0 else "center")
    return label.get_window_extent()


def _covered(box: Bbox, axes: Axes, taken: Sequence[Bbox]) -> tuple[int, int]:
    """How many corners are outside of the axes, and how much of what is drawn is covered."""
    outside = sum(not axes.bbox.contains(x, y) for x, y in box.corners())
    return outside, box.count_overlaps(taken)


def _box(axes: Axes, one: Place, other: Place, padding: float) -> Bbox:
    """Around what is drawn from one point to another."""
    return Bbox(axes.transData.transform([one, other])).padded(padding)


def rings(axes: Axes, point: Place, colors: Sequence[str], *, size: float = 46) -> None:
    """A point; of several that coincide, rings around each other, the first innermost."""
    for number, color in reversed(list(enumerate(colors))):
        axes.scatter(*point, s=size * (1 + 1.1 * number), color=color, edgecolor="white", linewidth=0.8, zorder=4)
