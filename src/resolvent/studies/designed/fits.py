"""Straight lines through results, with their errors: on the points themselves, and on structures not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from resolvent.analysis.figures.palette import GRID, INK, color_of_structure, in_order
from resolvent.studies.designed.trained import Trained
from resolvent.studies.grade import mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BESIDE = 0.12  # doublings between structures with the same congestion


@dataclass(frozen=True)
class FitPoint:
    """A result: its group (a structure), what it is predicted from, and what was measured."""

    group: str
    x: float
    y: float


@dataclass(frozen=True)
class LineFit:
    """y = intercept + slope · x by least squares.

    slope_error  standard error of the slope, over means of groups: seeds of one structure are not independent evidence
    explained    share of the variance of y (R²)
    rmse         root mean square of what is left
    held_out     the same for each group by a line through the others; `constant` if the mean of the others is the guess
    rank         Spearman's correlation of x and y over means of groups
    """

    points: int
    groups: int
    intercept: float
    slope: float
    slope_error: float
    explained: float
    rmse: float
    held_out: float
    constant: float
    rank: float


def fit_line(points: Sequence[FitPoint]) -> LineFit | None:
    """The fit; None with fewer than four groups, or if all have one x."""
    groups = list(dict.fromkeys(point.group for point in points))
    x, y = np.array([point.x for point in points]), np.array([point.y for point in points])
    if len(groups) < 4 or np.ptp(x) == 0:
        return None
    intercept, slope = _line(x, y)
    left = y - intercept - slope * x
    spread = float(np.sum((y - y.mean()) ** 2))
    own = np.array([point.group for point in points])
    means_x, means_y = (np.array([values[own == group].mean() for group in groups]) for values in (x, y))
    held_out, constant = np.zeros(len(y)), np.zeros(len(y))
    for group in groups:
        others = own != group
        a, b = _line(x[others], y[others])
        held_out[~others] = y[~others] - a - b * x[~others]
        constant[~others] = y[~others] - y[others].mean()
    return LineFit(
        points=len(y),
        groups=len(groups),
        intercept=intercept,
        slope=slope,
        slope_error=_slope_error(means_x, means_y),
        explained=1 - float(left @ left) / spread if spread else 0.0,
        rmse=_root_mean_square(left),
        held_out=_root_mean_square(held_out),
        constant=_root_mean_square(constant),
        rank=_correlation(_ranks(means_x), _ranks(means_y)),
    )


Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def _line(x: Values, y: Values) -> tuple[float, float]:
    deviation = x - x.mean()
    square = float(deviation @ deviation)
    slope = float(deviation @ y) / square if square else 0.0
    return float(y.mean() - slope * x.mean()), slope


def _slope_error(x: Values, y: Values) -> float:
    intercept, slope = _line(x, y)
    left, deviation = y - intercept - slope * x, x - x.mean()
    square = float(deviation @ deviation)
    return math.sqrt(float(left @ left) / (len(x) - 2) / square) if len(x) > 2 and square else math.inf


def _root_mean_square(values: Values) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _ranks(values: Values) -> Values:
    """From 0; equal ones share the mean of their ranks."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[index]


def _correlation(x: Values, y: Values) -> float:
    a, b = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0


Predictor = Literal["congestion / channels", "mean hops", "congestion / channels, without the ends"]
Fits = dict[tuple[str, Predictor], LineFit | None]  # by task, and by what accuracy is predicted from
LOAD: Predictor = "congestion / channels"
DISTANCE: Predictor = "mean hops"
MIDDLE: Predictor = "congestion / channels, without the ends"
_ENDS = (2, 6)  # the least and the most congestion of what is not at an end: beyond are dense and orders 1 and 2


def fits_of(every: Sequence[Trained]) -> Fits:
    tasks = dict.fromkeys(each.task for each in every)
    return {(task, by): fit_line(_fit_points(every, task, by)) for task in tasks for by in (LOAD, MIDDLE, DISTANCE)}


def _fit_points(every: Sequence[Trained], task: str, by: Predictor) -> list[FitPoint]:
    finite = [each for each in every if each.task == task and math.isfinite(each.congestion.lower)]
    if by == MIDDLE:
        finite = [each for each in finite if _ENDS[0] <= each.congestion.lower <= _ENDS[1]]
    return [
        FitPoint(each.label, each.distance if by == DISTANCE else each.load, score)
        for each in finite
        for score in each.scores
    ]


FIT_HEAD = (
    "task", "predictor", "runs", "structures", "slope per doubling", "R²", "error", "error, held out", "of the mean",
    "rank",
)  # fmt: skip


def fit_cells(task: str, by: Predictor, fit: LineFit | None) -> tuple[str, ...]:
    if fit is None:
        return (task, by, *["–"] * 8)
    return (
        task, by, str(fit.points), str(fit.groups), f"{100 * fit.slope:+.1f} ± {100 * fit.slope_error:.1f}",
        f"{fit.explained:.2f}", f"{100 * fit.rmse:.1f}", f"{100 * fit.held_out:.1f}", f"{100 * fit.constant:.1f}",
        f"{fit.rank:+.2f}",
    )  # fmt: skip


def fit_text(task: str, by: Predictor, fit: LineFit | None) -> str:
    if fit is None:
        return f"{task}: too few structures for a fit; add records with --records."
    verdict = "predicts" if fit.held_out < 0.8 * fit.constant else "hardly predicts"
    return (
        f"{task}: {by} {verdict} accuracy: {100 * fit.slope:+.1f} points per doubling (± "
        f"{100 * fit.slope_error:.1f}), R² {fit.explained:.2f}; off by {100 * fit.held_out:.1f} points on structures "
        f"it has not seen, against {100 * fit.constant:.1f} for the mean ({fit.points} runs, {fit.groups} structures)."
    )


def fit_figure(every: Sequence[Trained], fits: Fits) -> Figure:
    """Accuracy of every run against its congestion / channels, a panel for each task, with the line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from resolvent.analysis.figures.labels import name_points

    tasks = list(dict.fromkeys(task for task, _ in fits))
    connected = [each for each in every if math.isfinite(each.congestion.lower)]
    names = in_order(each.label for each in connected)
    figure = Figure(figsize=(5.6 * len(tasks), 6), layout="constrained")
    FigureCanvasAgg(figure)  # names are placed by their extent
    panels = figure.subplots(1, len(tasks), squeeze=False, sharex=True, sharey=True)[0]
    columns = {task: _columns(connected, task, names) for task in tasks}
    for axes, task in zip(panels, tasks, strict=True):
        for column in columns[task]:
            color = color_of_structure(column.name, names)
            axes.plot([column.x] * len(column.scores), column.scores, ".", color=color, ms=5, alpha=0.6)
            axes.plot(*column.mean, "o", markerfacecolor="none", color=color, ms=7, mew=1.6)
        if (fit := fits[task, LOAD]) is not None:
            ends = [min(each.load for each in connected), max(each.load for each in connected)]
            axes.plot(ends, [fit.intercept + fit.slope * x for x in ends], color=INK, lw=1.2, ls="--", zorder=1)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("log2(congestion / channels)", fontsize=9)
        axes.set_ylim(-0.04, 1.06)
        axes.margins(x=0.15)
        axes.grid(color=GRID, lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("accuracy", fontsize=9)
    figure.draw_without_rendering()
    for axes, task in zip(panels, tasks, strict=True):
        dots = [((c.x, score), (c.x, score)) for c in columns[task] for score in c.scores]
        lines = [c.name.replace(" | ", "\n") for c in columns[task]]  # a line for each kind of head
        name_points(axes, [c.mean for c in columns[task]], lines, dots, size=7.5)
    return figure


@dataclass(frozen=True)
class _Column:
    """The runs of a structure, of whatever settings, one above the other."""

    name: str
    x: float
    scores: tuple[float, ...]

    @property
    def mean(self) -> tuple[float, float]:
        return self.x, mean(self.scores)


def _columns(connected: Sequence[Trained], task: str, names: Sequence[str]) -> list[_Column]:
    """Structures with the same congestion stand beside each other, in one order."""
    scores: dict[tuple[float, str], list[float]] = {}
    for each in connected:
        if each.task == task:
            scores.setdefault((each.load, each.label), []).extend(each.scores)
    columns = []
    for load in sorted({load for load, _ in scores}):
        same = sorted((name for other, name in scores if other == load), key=names.index)
        for number, name in enumerate(same):
            shift = _BESIDE * (number - (len(same) - 1) / 2)
            columns.append(_Column(name, load + shift, tuple(scores[load, name])))
    return columns
