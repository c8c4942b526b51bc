"""A design in words: why a structure is on the frontier, what better ones cost, budgets that can be met, the table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from resolvent.analysis.frontier import fewest_hops
from resolvent.designer.budget import Budget, forbidden, number_up
from resolvent.designer.candidate import Better, Candidate
from resolvent.designer.search import Search
from resolvent.designer.structure import Shape
from resolvent.patterns import binomial

if TYPE_CHECKING:
    from resolvent.designer.design import Design

_LESS = {
    "max_hops": "fewer hops",
    "mean_hops": "fewer hops on average",
    "congestion": "less congestion",
    "reads": "fewer reads",
    "madds": "fewer multiply-adds",
    "slots": "a smaller cache",
    "kib": "a smaller cache",
}
_MARGIN = 0.9  # of what is better in figures that hardly differ from one to the next
_FACTORS = (8.0, 512.0, 32768.0)  # by which limits are relaxed
_WIDTH, _LEAST_NAMES = 80, 16
_HEAD = ("reads", "slots", "hops\n(least)", "mean", "congestion\n(least)")
_EXPLAINED = 3  # candidates of which it is said what better would cost


def why(each: Candidate, above: Sequence[Candidate], compared: Sequence[str]) -> str:
    """One sentence: the proven bounds that it meets, and what is better in it than in all that are ranked above it."""
    reasons, met = [], _bounds_met(each)
    if met:
        reasons.append(f"{_join(met)} ({'both proved' if len(met) > 1 else 'proved'})")
    less = [name for name in compared if all(_value(each, name) < _value(other, name) for other in above)]
    if not above:
        reasons.append("ranks first of all that fit")
    elif less:
        reasons.append(f"{_join([_LESS[name] for name in less])} than all ranked above")
    text = "; ".join(reasons or ["no other structure is as good in every figure"])
    return f"{text[0].upper()}{text[1:]}."


def _bounds_met(each: Candidate) -> list[str]:
    """The proven bounds that it meets, or misses by at most one."""
    figures, least, met = each.figures, each.least, []
    cache = "with this cache" if each.structure.is_uniform else "with caches of these sizes"
    if figures.max_hops == least.max_hops:
        met.append(f"the fewest hops possible {cache}")
    if figures.congestion.upper <= least.congestion + 1:
        least_load = (
            "the least congestion"
            if figures.congestion.upper == least.congestion
            else "congestion within 1 of the least"
        )
        met.append(f"{least_load} possible{'' if met else f' {cache}'}")
    return met


def better_than(each: Candidate, frontier: Sequence[Candidate], search: Search) -> tuple[Better, ...]:
    """For every figure that is compared: by a proof where there is one, otherwise the nearest on the frontier."""
    answers = [
        _proved(each, name, search) or _nearest(each, name, frontier, search.compared) for name in search.compared
    ]
    return tuple(answer for answer in answers if answer is not None)


def _proved(each: Candidate, name: str, search: Search) -> Better | None:
    """Fewer hops, or less congestion: the smallest cache that has it, in one pattern for all heads."""
    n, figures = search.n, each.figures
    if name == "max_hops" and each.structure.is_uniform and figures.max_hops == each.least.max_hops > 1:
        size = binomial.fewest_hops(figures.max_hops - 1, n)
        hops: float = figures.max_hops - 1
    elif name == "congestion" and figures.congestion.lower > 2:
        size = math.ceil(n / (figures.congestion.lower - 2))
        hops = fewest_hops(size, n)
    else:
        return None
    if size > 1024 or size >= n or size <= figures.slots:
        return None
    load = float(-(-n // size) + 1)  # of the lazy binomial pattern, at most
    value = hops if name == "max_hops" else load
    after = {"slots": float(size), "reads": float(size), "max_hops": float(hops), "congestion": load}
    costs = {key: amount for key, amount in after.items() if key != name and amount > figures.value(key)}
    return Better(name, value, f"binomial:{size},lazy", costs, proved=name == "max_hops")


def _nearest(each: Candidate, name: str, frontier: Sequence[Candidate], compared: Sequence[str]) -> Better | None:
    """The one with the next smaller value that gives up the least: the sum of doublings in all that is worse."""
    own = each.figures.congestion.lower if name == "congestion" else _value(each, name)
    own -= 0 if name == "max_hops" else (1 - _MARGIN) * own
    smaller = [other for other in frontier if other is not each and _value(other, name) < own]
    if not smaller:
        return None
    best = min(smaller, key=lambda other: _given_up(each, other, compared))
    costs = {key: _value(best, key) for key in compared if key != name and _value(best, key) > _value(each, key)}
    return Better(name, _value(best, name), best.structure.label, costs)


def _given_up(each: Candidate, other: Candidate, compared: Sequence[str]) -> float:
    ratios = (max(_value(other, key), 1e-9) / max(_value(each, key), 1e-9) for key in compared)
    return sum(math.log2(ratio) for ratio in ratios if ratio > 1)


def _value(each: Candidate, name: str) -> float:
    return each.figures.value(name)


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def nearest_budgets(
    budget: Budget, n: int, shape: Shape, frontier_of: Callable[[Budget], list[Candidate]]
) -> Iterator[str]:
    """For each limit that can be relaxed alone: the least of it that a structure was found for."""
    for name, limit in budget.limits.items():
        for factor in _FACTORS:
            relaxed = replace(budget, **{name: limit * factor})
            frontier = [] if any(forbidden(relaxed, n, shape)) else frontier_of(relaxed)
            if frontier:
                best = min(frontier, key=lambda each, name=name: each.figures.value(name))  # type: ignore[misc]
                yield f"{name} ≤ {number_up(best.figures.value(name))} ({best.structure.label})"
                break


def design_text(design: Design, most: int = 6) -> str:
    """The best of each kind, at most so many."""
    shown = design.candidates[:most]
    rows = [[cell.replace(" (", "\n(") for cell in each.cells[1:]] for each in shown]
    widths = [max(len(line) for row in (_HEAD, *rows) for line in row[column].split("\n")) for column in range(5)]
    names = max(_WIDTH - 4 - sum(widths) - 2 * len(widths), _LEAST_NAMES)
    names = min(names, max(len(each.structure.label) for each in shown) + 1)
    lines = [*_wrapped(design.title), *_wrapped(design.least_text), "", *_row("", "pattern", _HEAD, names, widths)]
    for rank, (each, row) in enumerate(zip(shown, rows, strict=True), 1):
        lines += _row(str(rank), each.structure.label, row, names, widths)
    for rank, each in enumerate(shown, 1):
        lines += ["", *_wrapped(f"{rank:>2}  {each.why}", "    ")]
        if rank <= _EXPLAINED and each.better:
            lines += ["    Better, and at what cost:", *(_better(str(one)) for one in each.better)]
    return "\n".join(line.rstrip() for line in [*lines, "", *_wrapped(_summary(design, most))])


def _row(rank: str, name: str, cells: Sequence[str], names: int, widths: Sequence[int]) -> list[str]:
    """As many lines as the name or a cell has."""
    columns = [textwrap.wrap(name, names, break_on_hyphens=False), *(cell.split("\n") for cell in cells)]
    lines = []
    for number, (first, *others) in enumerate(zip_longest(*columns, fillvalue="")):
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(others, widths, strict=True))
        lines.append(f"{'' if number else rank:>2}  {first:<{names}}  {numbers}")
    return lines


def _better(text: str) -> str:
    return "\n".join(
        textwrap.wrap(text, _WIDTH, initial_indent="    - ", subsequent_indent="      ", break_on_hyphens=False)
    )


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _summary(design: Design, most: int) -> str:
    left = f" {len(design) - most} more kinds: --json, or to_dict()." if len(design) > most else ""
    skipped = f" Skipped, since measuring them would take long: {len(design.skipped)}." if design.skipped else ""
    return (
        f"The best of each kind, ranked by {design.ranked_by}.{left} {design.considered:,} structures were considered, "
        f"{design.measured:,} measured; the others are dominated by these, most of them by proven bounds. "
        f"{len(design.frontier):,} are on the Pareto frontier. Hops are exact; congestion is exact or between proven "
        f"bounds. {design.sampled_text}{skipped}"
    )
