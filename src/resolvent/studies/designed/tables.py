"""Tables, grades, notes and the figure of `study design`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resolvent.analysis.profile import describe
from resolvent.patterns import as_pattern
from resolvent.studies.designed.trained import Trained
from resolvent.studies.fit import FitPoint, LineFit
from resolvent.studies.grade import better, mean
from resolvent.studies.page import COLORS
from resolvent.studies.study import Graded, Number
from resolvent.studies.table1.claims import ACCURACY
from resolvent.studies.table1.table import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "o^sD"


def fit_points(every: Sequence[Trained], task: str) -> list[FitPoint]:
    finite = (each for each in every if each.task == task and math.isfinite(each.congestion.lower))
    return [FitPoint(each.label, each.load, score) for each in finite for score in each.scores]


def graded(own: Sequence[Trained]) -> tuple[Graded, ...]:
    grades = []
    for one in own:
        for other in own:
            if one.task == other.task and one.congestion.upper < other.congestion.lower:
                grade = better(one.scores, other.scores, ACCURACY)
                loads = f"{describe(one.congestion)} < {describe(other.congestion)}"
                grades.append(Graded(f"{one.task}, congestion {loads}", f"{one.label} > {other.label}", grade))
    return tuple(grades)


def row(each: Trained) -> tuple[str, ...]:
    slots = [as_pattern(p).slots(each.tokens) for p in ([each.heads] if isinstance(each.heads, str) else each.heads)]
    most = "∞" if each.hops.unreachable_pairs else f"{each.hops.max}"
    return each.label, each.task, f"{mean(slots):g}", most, describe(each.congestion), percent(each.scores)


FIT_HEAD = (
    "task",
    "runs",
    "structures",
    "slope per doubling",
    "R²",
    "error",
    "error, held out",
    "of the mean",
    "rank",
)


def fit_cells(task: str, fit: LineFit | None, every: Sequence[Trained]) -> tuple[str, ...]:
    if fit is None:
        structures = {each.label for each in every if each.task == task}
        return (
            task,
            str(sum(len(each.scores) for each in every if each.task == task)),
            str(len(structures)),
            *["–"] * 6,
        )
    return (
        task, str(fit.points), str(fit.groups), f"{100 * fit.slope:+.1f} ± {100 * fit.slope_error:.1f}",
        f"{fit.explained:.2f}", f"{100 * fit.rmse:.1f}", f"{100 * fit.held_out:.1f}", f"{100 * fit.constant:.1f}",
        f"{fit.rank:+.2f}",
    )  # fmt: skip


def fit_text(task: str, fit: LineFit | None) -> str:
    if fit is None:
        return f"{task}: too few structures for a fit; add records with --records."
    verdict = "predicts" if fit.held_out < 0.8 * fit.constant else "hardly predicts"
    return (
        f"{task}: congestion / dimension {verdict} accuracy: {100 * fit.slope:+.1f} points per doubling (± "
        f"{100 * fit.slope_error:.1f}), R² {fit.explained:.2f}; off by {100 * fit.held_out:.1f} points on structures "
        f"it has not seen, against {100 * fit.constant:.1f} for the mean ({fit.points} runs, {fit.groups} structures)."
    )


def plain_rows(each: Trained) -> list[tuple[Number, ...]]:
    return [
        (each.label, each.task, each.tokens, each.channels, each.hops.max, each.hops.mean, each.congestion.lower,
         each.congestion.upper, score)
        for score in each.scores
    ]  # fmt: skip


def fit_figure(every: Sequence[Trained], fits: dict[str, LineFit | None]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(fits), 4.2), layout="constrained")
    labels = list(dict.fromkeys(each.label for each in every if math.isfinite(each.congestion.lower)))
    for axes, (task, fit) in zip(
        figure.subplots(1, len(fits), squeeze=False, sharey=True)[0], fits.items(), strict=True
    ):
        for each in every:
            if each.task == task and each.label in labels:
                number = labels.index(each.label)
                marker = _MARKERS[number // len(COLORS) % 4]
                axes.plot(
                    [each.load] * len(each.scores),
                    each.scores,
                    marker,
                    color=COLORS[number % len(COLORS)],
                    ms=4,
                    alpha=0.7,
                )
        if fit is not None:
            ends = [
                min(each.load for each in every if each.label in labels),
                max(each.load for each in every if each.label in labels),
            ]
            axes.plot(ends, [fit.intercept + fit.slope * x for x in ends], color="#1b1f24", lw=1.2, ls="--")
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("log2(congestion / channels)", fontsize=9)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color="#e8eaee", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    handles = [
        axes.plot([], [], _MARKERS[number // len(COLORS) % 4], color=COLORS[number % len(COLORS)], ms=4)[0]
        for number in range(len(labels))
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    figure.axes[0].set_ylabel("accuracy", fontsize=9)
    return figure
