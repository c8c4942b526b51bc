"""From a budget to patterns: what fits, ranked, with why, and what better would cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, overload

from resolvent.designer.budget import (
    FIGURES,
    Budget,
    LeastFigures,
    least_within,
    number,
    require_possible,
    require_shape,
    total_slots,
)
from resolvent.designer.candidate import Candidate
from resolvent.designer.explain import better_than, design_text, nearest_budgets, why
from resolvent.designer.measure import settled
from resolvent.designer.search import Search
from resolvent.designer.space import lines
from resolvent.designer.structure import Shape
from resolvent.errors import SettingError, closest
from resolvent.patterns import binomial
from resolvent.patterns.checks import require_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 1 << 22
_ORDER = ("max_hops", "congestion", "mean_hops", "reads", "slots")
_CORNERS = 24  # hops, up to which the least cache that has them is tried


@dataclass(frozen=True)
class Design(Sequence[Candidate]):
    """Candidates within a budget, best first; of each kind, the best. `print` it for a table with explanations.

    Attributes:
        n: Number of tokens.
        shape: Layers, heads and channels.
        budget: What may be spent.
        ranked_by: The order of figures, or their weights.
        least: What any structure within the budget needs at least.
        candidates: The best of each kind, in order.
        frontier: All that nothing else is as good as in every figure, in order.
        considered: How many structures were looked at, most of them set aside by bounds.
        measured: How many of these were measured.
        sampled: The kinds of which only some sizes were tried: others of these may be on the frontier, too.
        skipped: Those that would take too long to measure.
    """

    n: int
    shape: Shape
    budget: Budget
    ranked_by: str
    least: LeastFigures
    candidates: tuple[Candidate, ...]
    frontier: tuple[Candidate, ...]
    considered: int
    measured: int
    sampled: tuple[str, ...]
    skipped: tuple[str, ...]

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...

    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self.candidates[index]

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON. Infinite figures are the string "inf"."""
        least = {name: "inf" if math.isinf(value) else value for name, value in asdict(self.least).items()}
        return {
            "n": self.n,
            "shape": asdict(self.shape),
            "budget": self.budget.limits,
            "ranked_by": self.ranked_by,
            "least": least,
            "candidates": [each.to_dict() for each in self.candidates],
            "frontier": [each.point() for each in self.frontier],
            "considered": self.considered,
            "measured": self.measured,
            "sampled": list(self.sampled),
            "skipped": list(self.skipped),
        }

    def to_json(self) -> str:
        """Convert to a JSON string."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def plot(self) -> Figure:
        """Hops and congestion against the cache: the proven frontier, the budget and the candidates.

        `plot().savefig("page.png")` writes a file.
        """
        from resolvent.designer.figure import design_figure  # which needs matplotlib

        return design_figure(self)

    def __repr__(self) -> str:
        first = self.candidates[0].structure.label
        tried = " of the sizes tried" if self.sampled else ""
        return f"Design(n={self.n:,}, {self.budget}: {first}, … {len(self.frontier)} on the frontier{tried})"

    def __str__(self) -> str:
        return design_text(self)

    @property
    def title(self) -> str:
        shape = self.shape
        layers = "" if shape.layers == 1 else f"{shape.layers} layers of "
        heads = f"{shape.heads} head{'s' * (shape.heads > 1)}"
        return f"n = {self.n:,} tokens, {layers}{heads} of {shape.head_dim} channels: {self.budget}"

    @property
    def least_text(self) -> str:
        least = self.least
        return (
            f"Lower bounds for any pattern or mix within this budget: {number(least.max_hops)} "
            f"hop{'s' * (least.max_hops != 1)}, {least.mean_hops:,.2f} on average, "
            f"congestion {number(least.congestion)}."
        )

    @property
    def sampled_text(self) -> str:
        """Whether every size was tried; if not, of which kinds."""
        if not self.sampled:
            return "Every size that fits was tried."
        return (
            f"Only some sizes were tried (the largest that fits, smaller ones on a grid, those at which hops drop) of "
            f"these kinds, so other sizes of them may be on the frontier, too: {'; '.join(self.sampled)}."
        )


def design(
    n: int | str,
    *,
    slots: float | None = None,
    kib: float | None = None,
    reads: float | None = None,
    madds: float | None = None,
    max_hops: float | None = None,
    mean_hops: float | None = None,
    congestion: float | None = None,
    order: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
    heads: int = 12,
    head_dim: int = 64,
    layers: int = 1,
    item_bytes: int = 4,
) -> Design:
    """Find the patterns that make the most of a budget, with exact figures and proven bounds.

    Searched are windows, binomial patterns, strides a·k^p + 1, b^k and sums of two, plain and cache-efficient, lists of
    distances, pairs A/B, published families, and mixes over heads and layers. All pairs of tokens are connected in
    every result. Give a budget on at least one figure.

    Args:
        n: Number of tokens, as an integer or a string such as `"128k"`; at most 4M.
        slots: Cache slots of a head, on average over heads (and layers).
        kib: Decode cache of all layers in KiB, under the rule softmax.
        reads: Positions that a token reads in a head, at most, on average over heads.
        madds: Multiply-adds of mixing per token, in all layers.
        max_hops: The most hops between two of n tokens.
        mean_hops: Hops on average over all pairs.
        congestion: Tokens that share a state when n tokens are copied to the next n positions.
        order: Figures in the order in which they count [default: max_hops, congestion, mean_hops, reads, slots].
        weights: Instead of an order, how much a doubling of each figure counts.
        heads: Heads of a layer, which may have different patterns.
        head_dim: Channels of a head.
        layers: Layers of the stack, which may differ, too.
        item_bytes: Bytes per number.

    Returns:
        The candidates, best first.

    >>> found = design("4k", slots=16, heads=1)
    >>> found[0].structure.label, found[0].figures.max_hops, found[0].least.max_hops
    ('binomial:16,lazy', 4, 4)
    """
    n = require_length(n, most=_LONGEST)
    shape = Shape(layers, heads, head_dim, item_bytes)
    require_shape(shape)
    budget = Budget(slots, kib, reads, madds, max_hops, mean_hops, congestion)
    key_names = _ranking(order, weights)
    require_possible(budget, n, shape)
    search = _searched(n, shape, budget)
    frontier = search.frontier()
    if not frontier:
        raise SettingError(_nothing_fits(n, shape, budget))
    ranked = sorted(frontier, key=lambda each: _key(each, key_names, weights))
    best = _first_of_each_kind(ranked)
    exact = {each: replace(each, figures=settled(each.structure, n, each.figures)) for each in best}
    ranked = sorted((exact.get(each, each) for each in ranked), key=lambda each: _key(each, key_names, weights))
    best = _first_of_each_kind(ranked)
    explained = tuple(
        replace(each, why=why(each, best[:rank], search.compared), better=better_than(each, ranked, search))
        for rank, each in enumerate(best)
    )
    return Design(
        n,
        shape,
        budget,
        _describe(key_names, weights),
        least_within(budget, n, shape),
        explained,
        tuple(ranked),
        search.considered,
        len(search.measured),
        tuple(search.sampled),
        tuple(search.skipped),
    )


def _first_of_each_kind(ranked: Sequence[Candidate]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for each in ranked:
        best.setdefault(each.kind, each)
    return list(best.values())


def _searched(n: int, shape: Shape, budget: Budget) -> Search:
    search = Search(n, shape, budget)
    reads = n if budget.reads is None else math.floor(budget.reads)
    widest = min(total_slots(budget, n, shape) // shape.states, reads) + 1
    diagonal = budget.kib is not None or budget.madds is not None
    search.run(lines(n, shape, _corners(n, budget), widest, diagonal=diagonal))
    return search


def _nothing_fits(n: int, shape: Shape, budget: Budget) -> str:
    nearest = list(nearest_budgets(budget, n, shape, lambda relaxed: _searched(n, shape, relaxed).frontier()))
    advice = f"The nearest budgets that can be met: {', or '.join(nearest)}." if nearest else "Relax several limits."
    return f"no structure that was searched fits {budget} at n = {n:,}, although no known bound forbids it. {advice}"


def _corners(n: int, budget: Budget) -> tuple[int, ...]:
    """The least caches for 1, 2, 3, … hops, and for a congestion that is asked for."""
    sizes = {binomial.fewest_hops(h, n) for h in range(1, _CORNERS + 1)}
    for load in (budget.congestion or 0, (budget.congestion or 0) - 1):
        if load >= 1:
            sizes.add(math.ceil(n / math.floor(load)))
    return tuple(sorted(sizes))


def _ranking(order: Sequence[str] | None, weights: Mapping[str, float] | None) -> tuple[str, ...]:
    """The figures by which results are ranked; an unknown one raises an error."""
    if order is not None and weights is not None:
        raise SettingError("expected an order of figures or weights of them, got both.")
    if isinstance(order, str):
        raise SettingError(f"expected the order as a list of figures, got {order!r}.")
    given = tuple(weights) if weights is not None else tuple(order or ())
    for name in given:
        if name not in FIGURES:
            raise SettingError(f"unknown figure {name!r}: expected {', '.join(FIGURES)}.{closest(str(name), FIGURES)}")
    for name, weight in (weights or {}).items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise SettingError(f"expected the weight of {name} to be a number ≥ 0, got {weight!r}.")
    return given + tuple(name for name in _ORDER if name not in given)


def _key(each: Candidate, names: Sequence[str], weights: Mapping[str, float] | None) -> tuple[float, ...]:
    values = tuple(each.figures.value(name) for name in names)
    if weights is None:
        return values
    return (sum(w * math.log2(max(each.figures.value(name), 1.0)) for name, w in weights.items()), *values)


def _describe(names: Sequence[str], weights: Mapping[str, float] | None) -> str:
    if weights is not None:
        return "weights " + ", ".join(f"{name} {number(weight)}" for name, weight in weights.items())
    return ", then ".join(names)


assert {field.name for field in fields(Budget)} == set(FIGURES)
