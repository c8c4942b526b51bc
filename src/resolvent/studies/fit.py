"""A straight line through results, with its error: on the points themselves, and on groups that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
