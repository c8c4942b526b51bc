"""Search with pruning: bounds first, then hops, then congestion, and each only while nothing known is as good.

A structure is set aside when a proven lower bound on its figures exceeds the budget, or when one that has been measured
is no worse in any figure, even if it reached its bounds. So nothing that is better in some figure is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from resolvent.analysis.congestion import Congestion
from resolvent.designer.budget import Budget, least_of
from resolvent.designer.candidate import Candidate
from resolvent.designer.measure import Figures, congestion_at_a_cut, measure_congestion, measure_hops
from resolvent.designer.space import Line
from resolvent.designer.structure import Shape, Structure
from resolvent.errors import PatternError
from resolvent.patterns import TranslationInvariant

_ALL_SIZES = 32  # up to here every size is tried, where several are for each doubling, and
_SHORT = 64  # for so few tokens everywhere
_ALL_CLOSED = 256  # the same where figures have closed forms, whatever the number of tokens
_MOST_SUMS = 600_000_000  # additions, up to which hops at fixed distances are computed

Point = tuple[float, ...]


@dataclass(eq=False)
class Search:
    """Compares figures in the units of the budget: slots or KiB, reads or multiply-adds."""

    n: int
    shape: Shape
    budget: Budget
    prune: bool = True
    measured: list[Candidate] = field(default_factory=list)
    _points: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 5)))  # of all measured, at worst
    considered: int = 0
    sampled: dict[str, None] = field(default_factory=dict)  # kinds of which some sizes that fit were left out, in order
    skipped: list[str] = field(default_factory=list)

    @property
    def compared(self) -> tuple[str, ...]:
        """The figures that one structure may be better in than another."""
        cache = "kib" if self.budget.kib is not None else "slots"
        work = "madds" if self.budget.madds is not None else "reads"
        return ("max_hops", "mean_hops", "congestion", work, cache)

    def run(self, lines: Iterable[Line]) -> None:
        """Try all sizes worth trying of every line, the largest that fits first."""
        seen: set[Structure] = set()
        for line in lines:
            most = self._fits(line)
            chosen = sizes(line, most, every=line.steps > 1 or self.n <= _SHORT)
            if len(chosen) < most - line.least + 1:
                self.sampled[line.kind] = None
            for size in chosen:
                structure = line.make(size)
                if structure not in seen:
                    seen.add(structure)
                    self.consider(line.kind, structure)

    def _fits(self, line: Line) -> int:
        """The largest size whose cache and reads are within the budget; below the line's least if there is none."""
        low, high = line.least - 1, line.most + 1
        if self._within(line.make(line.most)):
            return line.most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._within(line.make(middle)) else (low, middle)
        return low

    def _within(self, structure: Structure) -> bool:
        budget, n, shape = self.budget, self.n, self.shape
        return (
            budget.allows("slots", structure.slots(n, shape))
            and (budget.kib is None or budget.allows("kib", structure.kib(n, shape)))
            and (budget.reads is None or budget.allows("reads", structure.reads(n, shape)))
            and (budget.madds is None or budget.allows("madds", structure.madds(n, shape)))
        )

    def consider(self, kind: str, structure: Structure) -> None:
        """Measure a structure as far as it may still be on the frontier."""
        self.considered += 1
        if not self._within(structure):
            return
        least = least_of(structure, self.n, self.shape)
        if self._out(structure, least.max_hops, least.mean_hops, least.congestion):
            return
        if self._takes_long(structure):
            self.skipped.append(structure.label)
            return
        try:
            distances = measure_hops(structure, self.n)
        except PatternError as error:  # too many hops, or positions, to follow
            self.skipped.append(f"{structure.label} ({error})")
            return
        if distances.unreachable_pairs or self._out(structure, distances.max, distances.mean, least.congestion):
            return
        if self._out(structure, distances.max, distances.mean, congestion_at_a_cut(structure, self.n)):
            return
        bounds = measure_congestion(structure, self.n)
        if self._out(structure, distances.max, distances.mean, bounds.lower):
            return
        if self.budget.congestion is not None and not self.budget.allows("congestion", bounds.upper):
            return
        figures = self._figures(structure, distances.max, distances.mean, bounds)
        self.measured.append(Candidate(kind, structure, figures, least))
        self._points = np.vstack([self._points, self.upper(self.measured[-1])])

    def _takes_long(self, structure: Structure) -> bool:
        p = structure.patterns[0]
        long = isinstance(p, TranslationInvariant) and not p.contiguous_columns
        return long and structure.is_uniform and self.n * len(p.offsets(self.n)) > _MOST_SUMS

    def _out(self, structure: Structure, max_hops: float, mean_hops: float, congestion: float) -> bool:
        """Whether these lower bounds are over the budget, or one that is measured is as good in every figure."""
        budget = self.budget
        low = {"max_hops": max_hops, "mean_hops": mean_hops, "congestion": congestion}
        if not all(budget.allows(name, value) for name, value in low.items()):
            return True
        if not self.prune:
            return False
        low |= {name: self._cost(structure, name) for name in self.compared[3:]}
        point = np.array([low[name] for name in self.compared])
        return bool((self._points <= point).all(axis=1).any())

    def _cost(self, structure: Structure, name: str) -> float:
        return float(getattr(structure, name)(self.n, self.shape))

    def _figures(self, structure: Structure, max_hops: int, mean_hops: float, bounds: Congestion) -> Figures:
        costs = {name: self._cost(structure, name) for name in ("slots", "kib", "reads", "madds")}
        return Figures(**costs, max_hops=max_hops, mean_hops=mean_hops, congestion=bounds)

    def upper(self, each: Candidate) -> Point:
        """Its figures, at worst where one is only bounded."""
        return tuple(each.figures.value(name) for name in self.compared)

    def lower(self, each: Candidate) -> Point:
        """Its figures, at best."""
        return tuple(
            float(each.figures.congestion.lower) if name == "congestion" else each.figures.value(name)
            for name in self.compared
        )

    def frontier(self) -> list[Candidate]:
        """Those that none is certain to be as good as in every figure; of equals, the first."""
        if not self.measured:
            return []
        lows, highs = (np.array([point(each) for each in self.measured]) for point in (self.lower, self.upper))
        kept = []
        for index, each in enumerate(self.measured):
            same = (highs == highs[index]).all(axis=1)
            earlier = np.arange(len(highs)) < index
            no_larger = (highs <= lows[index]).all(axis=1) & (earlier | ~same)
            equal = same & earlier & (lows == lows[index]).all(axis=1)
            if not (no_larger | equal).any():
                kept.append(each)
        return kept


def no_worse(one: Point, other: Point) -> bool:
    """Whether no figure of the one is larger."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def sizes(line: Line, most: int, *, every: bool) -> list[int]:
    """From the largest down, see `Line`; all small ones if asked for."""
    if most < line.least:
        return []
    corners = [size for size in line.corners if line.least <= size <= most]
    chosen = {most, *(corners if line.steps else corners[-1:])}
    if every or line.closed:
        chosen |= set(range(line.least, min(most, _ALL_CLOSED if line.closed else _ALL_SIZES) + 1))
    size = float(most)
    while line.steps and size >= line.least:
        chosen.add(int(size))
        size /= 2 ** (1 / line.steps)
    return sorted(chosen, reverse=True)
