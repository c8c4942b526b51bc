"""Budgets near one that nothing fits: how far each limit has to be relaxed, the others as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from resolvent.designer.budget import Budget, forbidden, number_up
from resolvent.designer.candidate import Candidate
from resolvent.designer.structure import Shape

_FACTORS = (8.0, 512.0, 32768.0)


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
