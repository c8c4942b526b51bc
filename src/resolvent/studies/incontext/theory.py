"""Theory beside data: what can be counted within some hops, what trained layers do, and what predicts the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from resolvent.analysis import hop_matrix
from resolvent.batch import Tokens
from resolvent.studies.grade import mean
from resolvent.studies.incontext.results import InContextResult, Setting, by_role
from resolvent.studies.study import TextTable
from resolvent.tasks import Markov
from resolvent.tasks.synthetic import HELD_OUT, stream

Groups = Mapping[Setting, Sequence[InContextResult]]
Floats = npt.NDArray[np.float64]

REACHES = (1, 2, 4)  # hops
_DOCUMENTS = 64
_LONGEST = 512  # tokens up to which readers within hops are computed: they take n² numbers for every document
_SPECTRUM = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))
_FEWEST = 6  # structures that a fit needs


NOTE = (
    "A reader within h hops counts the pairs of tokens that a layer can pass on in so many hops, if each of its inputs "
    "knows the pair that ends with it (in brackets, the share of the past within them); it bounds no model, but says "
    "what could be gathered so. The share of T by feedback steps is that of the last layer after training. Fits are "
    "least squares over structures, means over seeds, with an intercept for each budget; pairs without a path count as "
    "n hops, copies without one as a congestion of n. Standard errors take a structure at several budgets for "
    "independent points, which they are not. The last column leaves out one structure at a time, at all budgets: a fit "
    "that does not beat the first row there predicts nothing. Parameters are equal by design, but for a thousandth by "
    "which widths of MLPs are rounded, so they cannot predict."
)

# What can be counted within h hops


@lru_cache(maxsize=64)
def reach_reader(structure: str, hops: int, task: Markov) -> tuple[float, ...]:
    """Nats at each position for one who counts the pairs that end within so many hops, on documents of its own.

    Each input of the layer knows the pair of tokens that ends with it, as behind a `local:2` block. Pairs that the
    layer cannot pass on in so many hops are not counted.
    """
    matrix = hop_matrix(structure, task.context)
    within = (matrix >= 0) & (matrix <= hops)
    documents = task.draw(stream(HELD_OUT - 1, 0), _DOCUMENTS, task.context)
    nats = [_counting_within(task, row, within) for row in documents.tokens]
    return tuple(np.mean(nats, 0).tolist())


def _counting_within(task: Markov, tokens: Tokens, within: npt.NDArray[np.bool_]) -> Floats:
    """Of one document: `within[i, j]` says whether the reader at i counts the pair that ends at j."""
    begins, ends = tokens[:-1], tokens[1:]
    before = within[:, 1:]  # pair j begins at j and ends at j + 1 ≤ i
    same = before & (begins[:-1] == begins[:, None])
    pairs = (same & (ends[:-1] == ends[:, None])).sum(1)
    nats: Floats = np.log(same.sum(1) + task.k * task.alpha) - np.log(pairs + task.alpha)
    return nats


def reach_lines(result: InContextResult) -> dict[int, list[float]]:
    """By hops, the loss in each range of positions of the reader within them; empty for chains it does not apply to."""
    task = result.records[0].config.task
    assert isinstance(task, Markov)
    if task.order > 1 or task.hidden or task.context > _LONGEST or result.setting.alone:
        return {}
    lines = {}
    for hops in REACHES:
        nats = reach_reader(result.structure, hops, task)
        lines[hops] = [mean(nats[first : last + 1]) for first, last in result.positions]
    return lines


def reach_table(groups: Groups) -> TextTable | None:
    """The loss of each structure beside that of readers within 1, 2 and 4 hops, and how much of the past these see.

    Of the first budget, and of others that differ from it in steps alone.
    """
    base, first = next(iter(groups.items()))
    if not reach_lines(first[0]):
        return None
    longer = [s for s in groups if s._replace(steps=base.steps) == base]
    rows = []
    for result in first:
        task = result.records[0].config.task
        assert isinstance(task, Markov)
        matrix = hop_matrix(result.structure, task.context)
        pairs = task.context * (task.context - 1) / 2
        seen = [((matrix > 0) & (matrix <= hops)).sum() / pairs for hops in REACHES]
        nats = [mean(reach_reader(result.structure, hops, task)) for hops in REACHES]
        cells = [f"{loss:.3f} ({100 * share:.0f} %)" for loss, share in zip(nats, seen, strict=True)]
        losses = [next((mean(r.losses) for r in groups[s] if r.structure == result.structure), None) for s in longer]
        trained = ["–" if loss is None else f"{loss:.3f}" for loss in losses]
        rows.append((result.structure, *trained, *cells))
    names = [f"loss, {s.steps:,} steps" for s in longer] if len(longer) > 1 else ["loss"]
    head = ("structure", *names, *(f"reader within {hops} hop{'s' * (hops > 1)}" for hops in REACHES))
    return TextTable(head, tuple(rows))


# What trained layers do


def spectrum_table(group: Sequence[InContextResult]) -> TextTable | None:
    """The share of T by how often it was fed back, mean over heads, tokens and seeds; None if it was not measured."""
    rows = []
    for result in group:
        share = _spectrum(result)
        if share is not None:
            cells = [float(share[first : None if last is None else last + 1].sum()) for first, last in _SPECTRUM]
            rows.append((result.structure, *(f"{100 * cell:.1f}" for cell in cells), f"{_mean_steps(share):.2f}"))
    if not rows:
        return None
    names = [
        f"{first}" if last == first else f"{first} or more" if last is None else f"{first}–{last}"
        for first, last in _SPECTRUM
    ]
    return TextTable(("% of T by feedback steps", *names, "mean"), tuple(rows))


def feedback_by_setting(groups: Groups) -> TextTable | None:
    """The mean number of feedback steps at each budget; None if there is one budget, or nothing was measured."""
    rows = []
    for role, by_budget in by_role(groups).items():
        spectra = [None if each is None else _spectrum(each) for each in by_budget]
        rows.append((role, *("–" if share is None else f"{_mean_steps(share):.2f}" for share in spectra)))
    measured = any(cell != "–" for _, *cells in rows for cell in cells)
    head = ("mean feedback steps of T", *map(str, groups))
    return TextTable(head, tuple(rows)) if measured and len(groups) > 1 else None


def _spectrum(result: InContextResult) -> Floats | None:
    spectra = [each.hop_spectrum for each in result.evaluations if each.hop_spectrum]
    return np.asarray(np.mean(spectra, 0)) if spectra else None


def _mean_steps(share: Floats) -> float:
    return float(share @ np.arange(len(share)))


# What predicts the loss


@dataclass(frozen=True)
class Fit:
    """Least squares of nats above the floor on some predictors, within budgets.

    slopes    of each predictor, with standard errors
    explained share of the variance within budgets
    left_out  root mean square error on structures that the fit has not seen
    """

    predictors: tuple[str, ...]
    slopes: tuple[tuple[float, float], ...]
    explained: float
    left_out: float


_PREDICTORS: dict[str, Callable[[InContextResult], float]] = {
    "log reads": lambda r: math.log(r.theory.mean_reads),
    "log mean hops": lambda r: math.log(r.theory.mean_hops),
    "log congestion": lambda r: math.log(_congestion(r)),
    "log cache": lambda r: math.log(r.theory.cache_slots),
    "log multiply-adds": lambda r: math.log(r.theory.madds),
    "log parameters": lambda r: math.log(r.parameters),
}
_READ_ALL = ("attention", "dense")
_SETS: tuple[tuple[str, ...], ...] = (
    (),
    *((name,) for name in _PREDICTORS),
    ("log mean hops", "log congestion", "log reads"),
    ("log multiply-adds", "log cache"),
)


def fits(groups: Groups, without: Collection[str] = ()) -> list[Fit]:
    """Of each set of predictors; a budget's mean is taken out of everything first. Empty if structures are few.

    Chains on other numbers of tokens than the first have losses of another size, and are left out; so are structures
    named in `without`.
    """
    first = next(iter(groups)).k
    runs = [r for setting, group in groups.items() for r in group if setting.k == first and r.role not in without]
    structures = [result.role for result in runs]
    if len(set(structures)) < _FEWEST:
        return []
    settings = np.array([list(groups).index(result.setting) for result in runs])
    columns = {name: np.array([value(result) for result in runs]) for name, value in _PREDICTORS.items()}
    target = np.array([mean(result.excesses) for result in runs])
    if not np.isfinite(target).all():
        return []
    names = np.array([list(dict.fromkeys(structures)).index(name) for name in structures])
    return [_fit(predictors, [columns[name] for name in predictors], target, settings, names) for predictors in _SETS]


def fit_table(groups: Groups) -> TextTable | None:
    """The fits with their errors: over all structures, and over those that do not read every position."""
    made = [(fit, "") for fit in fits(groups)]
    if not made:
        return None
    made += [(fit, " (without attention and dense)") for fit in fits(groups, _READ_ALL)]
    rows = []
    for fit, which in made:
        slopes = ", ".join("any" if math.isinf(error) else f"{slope:+.3f} ± {error:.3f}" for slope, error in fit.slopes)
        name = (" + ".join(fit.predictors) or "the budget's mean alone") + which
        rows.append((name, slopes or "–", f"{100 * fit.explained:.0f} %", f"{fit.left_out:.3f}"))
    head = ("predictors of nats above the floor", "slope ± standard error", "explained", "error on structures left out")
    return TextTable(head, tuple(rows))


def _fit(
    predictors: tuple[str, ...],
    columns: Sequence[Floats],
    target: Floats,
    settings: npt.NDArray[np.int64],
    structures: npt.NDArray[np.int64],
) -> Fit:
    budgets = (settings[:, None] == np.unique(settings)).astype(float)  # an intercept for each
    design = np.column_stack([budgets, *columns])
    weights, errors = _least_squares(design, target, budgets.shape[1])
    residual = target - design @ weights
    plain = target - budgets @ np.linalg.lstsq(budgets, target, rcond=None)[0]
    missed = []
    for structure in np.unique(structures):
        out = structures == structure
        others = np.linalg.lstsq(design[~out], target[~out], rcond=None)[0]
        missed.extend((target[out] - design[out] @ others).tolist())
    slopes = zip(weights[budgets.shape[1] :].tolist(), errors, strict=True)
    explained = 1 - float(residual @ residual) / max(float(plain @ plain), 1e-300)
    return Fit(predictors, tuple(slopes), explained, float(np.sqrt(np.mean(np.square(missed)))))


def _least_squares(design: Floats, target: Floats, intercepts: int) -> tuple[Floats, list[float]]:
    """Weights, and standard errors of those after the intercepts; infinite where a column says nothing."""
    weights: Floats = np.linalg.lstsq(design, target, rcond=None)[0].astype(np.float64)
    residual, rank = target - design @ weights, int(np.linalg.matrix_rank(design))
    freedom = len(target) - rank
    if freedom < 1 or rank < design.shape[1]:
        return weights, [math.inf] * (design.shape[1] - intercepts)
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / freedom
    return weights, [float(error) for error in np.sqrt(np.diag(covariance))[intercepts:]]


def _congestion(result: InContextResult) -> float:
    """Its lower bound; n, that of a single state, where copies have no path."""
    lower = result.theory.congestion.lower
    return result.setting.context if math.isinf(lower) else lower
