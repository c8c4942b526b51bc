"""What may be spent, what any pattern needs at least, and which bound forbids a budget that cannot be met."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import count

from resolvent.analysis.frontier import fewest_hops, least_congestion, least_mean_hops
from resolvent.designer.structure import Shape, Structure
from resolvent.errors import SettingError, is_integer
from resolvent.patterns import pattern

FIGURES = {
    "slots": "cache slots of a head, the mean over heads",
    "kib": "decode cache of all layers, in KiB",
    "reads": "the most positions that a token reads in a head, the mean over heads",
    "madds": "multiply-adds per token of mixing",
    "max_hops": "the most hops between any two of n tokens",
    "mean_hops": "hops on average over all pairs",
    "congestion": "tokens that share a state when n tokens are copied to the next n positions",
}


@dataclass(frozen=True)
class Budget:
    """The most that is allowed of each figure; None where there is no limit. See `FIGURES`."""

    slots: float | None = None
    kib: float | None = None
    reads: float | None = None
    madds: float | None = None
    max_hops: float | None = None
    mean_hops: float | None = None
    congestion: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0 or math.isinf(limit):
                raise SettingError(f"{name}, {FIGURES[name]}: expected a number > 0, got {limit!r}.")
        if not self.limits:
            raise SettingError(
                f"expected a budget on at least one of {', '.join(FIGURES)}, such as slots=64, got none."
            )

    @property
    def limits(self) -> dict[str, float]:
        """Those that are given."""
        return {field.name: limit for field in fields(self) if (limit := getattr(self, field.name)) is not None}

    def allows(self, name: str, value: float) -> bool:
        limit = getattr(self, name)
        return limit is None or value <= limit * (1 + 1e-12)

    def __str__(self) -> str:
        return ", ".join(f"{name} ≤ {number(limit)}" for name, limit in self.limits.items())


@dataclass(frozen=True)
class LeastFigures:
    """Lower bounds on what can be reached: by a structure, or by any within a budget."""

    max_hops: float
    mean_hops: float
    congestion: float


def number(value: float) -> str:
    """`64`, `2,048`, `3.61`, `∞`."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:,.2f}"


def number_up(value: float) -> str:
    """As `number`, rounded up: a limit that is printed has room for the value."""
    return number(math.ceil(value if value >= 1000 else 100 * value - 1e-9) / (1 if value >= 1000 else 100))


def require_shape(shape: Shape) -> None:
    for field in fields(shape):
        value = getattr(shape, field.name)
        if not is_integer(value) or value < 1:
            raise SettingError(f"expected {field.name} to be an integer ≥ 1, got {value!r}.")


def least_of(structure: Structure, n: int, shape: Shape) -> LeastFigures:
    """What its caches and reads allow it at best: bounds for any with as many slots in each head."""
    sizes = [p.slots(n) for p in structure.patterns]
    load = least_congestion(sum(c * p.slots(n) for p, c in structure.counts().items()), n, shape.heads)
    if structure.is_uniform:
        p = structure.patterns[0]
        if all(stage.is_shifted(n) for stage in p.stages):
            strides = sum(len(stage.offsets(n)) for stage in p.stages)
            sizes = [min(sizes[0], strides)]  # h of r distances, in any order, have C(r+h, h) - 1 sums
        return LeastFigures(fewest_hops(sizes[0], n), _least_mean(sizes[0], n), load)
    # Heads of one layer reach what each reaches alone; through several layers, what one would that holds all of it.
    reach = _heads_reach(sizes if len(structure.layers) == 1 else [sum(sizes)])
    return LeastFigures(_first(reach, n), _mean_beyond(reach, n), load)


def least_within(budget: Budget, n: int, shape: Shape) -> LeastFigures:
    """Bounds for every structure within a budget, mixes over heads and layers included."""
    total = total_slots(budget, n, shape)
    hops, mean = fewest_hops(total, n), _least_mean(total, n)
    if budget.reads is not None:
        read = math.floor(budget.reads * shape.states)
        hops, mean = max(hops, _first(_reads_reach(read), n)), max(mean, _mean_beyond(_reads_reach(read), n))
    return LeastFigures(hops, mean, least_congestion(total, n, shape.heads))


def total_slots(budget: Budget, n: int, shape: Shape) -> int:
    """The most slots, of all heads together, that the budget has room for."""
    most = (n - 1) * shape.states
    if budget.slots is not None:
        most = min(most, math.floor(budget.slots * shape.states * (1 + 1e-12)))
    if budget.kib is not None:  # a slot keeps one vector at least
        most = min(most, math.floor(budget.kib * 1024 / (shape.head_dim * shape.item_bytes)))
    return most


_least_mean = lru_cache(maxsize=4096)(least_mean_hops)


def _heads_reach(sizes: list[int]) -> Callable[[int], int]:
    """Tokens within h hops through the best of several heads, itself included."""
    return lambda h: 1 + sum(math.comb(s + h, h) - 1 for s in sizes)


def _reads_reach(reads: int) -> Callable[[int], int]:
    return lambda h: h + 1 if reads <= 1 else (reads ** (h + 1) - 1) // (reads - 1)


def _first(reach: Callable[[int], int], n: int) -> float:
    """The fewest hops that reach n tokens; doubling, then bisecting."""
    if n > 1 and reach(1) <= 1:
        return math.inf
    high = next(2**k for k in count() if reach(2**k) >= n)
    low = high // 2 if high > 1 else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reach(middle) >= n else (middle, high)
    return high if n > 1 else 0


def _mean_beyond(reach: Callable[[int], int], n: int) -> float:
    """As `least_mean_hops`: of the pairs that are more than h hops apart, over all h."""
    if n < 2:
        return 0.0
    if reach(1) <= 1:
        return math.inf
    total, h = 0, 0
    while (beyond := n - reach(h)) > 0 and h <= n:
        total += beyond * (beyond + 1) // 2
        h += 1
    return total / (n * (n - 1) // 2)


def require_possible(budget: Budget, n: int, shape: Shape) -> None:
    """Raise an error if a proven bound forbids the budget: which one, and the least that is possible."""
    for message in forbidden(budget, n, shape):
        raise SettingError(message)


def forbidden(budget: Budget, n: int, shape: Shape) -> Iterator[str]:
    """Why no pattern can meet the budget, and the nearest one that the same bound permits."""
    least, total = least_within(budget, n, shape), total_slots(budget, n, shape)
    costs = [name for name in ("slots", "kib", "reads") if name in budget.limits]
    spent = " and ".join(f"{name} ≤ {number(budget.limits[name])}" for name in costs)
    within = f"{spent} in {_heads(shape)} and n = {n:,}" if spent else f"n = {n:,}"
    if n > 1 and total < 1:
        yield f"{within}: the cache has no room for one position; expected slots ≥ 1, which is {_one_slot(n, shape)}."
    if budget.reads is not None and n > 1 and budget.reads * shape.states < 1:
        yield f"{within}: no token would read another; expected reads ≥ 1."
    if not budget.allows("max_hops", least.max_hops):
        yield (
            f"no pattern has max_hops ≤ {number(budget.max_hops or 0)} with {within}: {number(least.max_hops)} is the "
            f"least, {_reach_reason(budget, n, shape, total)}.{_hop_advice(budget, n, shape)}"
        )
    if not budget.allows("mean_hops", least.mean_hops):
        yield (
            f"no pattern has mean_hops ≤ {number(budget.mean_hops or 0)} with {within}: {number_up(least.mean_hops)} "
            f"is a lower bound, {_reach_reason(budget, n, shape, total)}."
        )
    if not budget.allows("congestion", least.congestion):
        yield (
            f"no pattern has congestion ≤ {number(budget.congestion or 0)} with {within}: {number(least.congestion)} "
            "is the least, since n - 1 tokens cross a cut through what is held there (slots × congestion ≥ n - 1)."
            f"{_congestion_advice(budget, n, shape)}"
        )


def _one_slot(n: int, shape: Shape) -> str:
    kib = Structure.uniform(pattern("first-order"), shape).kib(n, shape)
    return f"{number_up(kib)} KiB in {_heads(shape)}"


def _reach_reason(budget: Budget, n: int, shape: Shape, total: int) -> str:
    if budget.reads is None or fewest_hops(total, n) >= _first(_reads_reach(_total_reads(budget, shape)), n):
        return f"since n ≤ C(s + h, s) for h hops and s = {total:,} slots in all"
    return f"since n ≤ 1 + r + … + r^h for h hops and r = {_total_reads(budget, shape):,} reads in all"


def _total_reads(budget: Budget, shape: Shape) -> int:
    return math.floor((budget.reads or 0) * shape.states)


def _hop_advice(budget: Budget, n: int, shape: Shape) -> str:
    """What so few hops take at least, by the same bounds."""
    hops = math.floor(budget.max_hops or 0)
    if hops < 1:
        return ""
    needs = _cache_needs(budget, int(fewest_hops(hops, n)), shape)
    reads = next(r for r in count(1) if _reads_reach(r)(hops) >= n) if budget.reads is not None else 0
    if budget.reads is not None and reads > _total_reads(budget, shape):
        needs.append(f"reads ≥ {number_up(reads / shape.states)}")
    return f" {hops} hop{'s' * (hops > 1)} would take {' and '.join(needs)}." if needs else ""


def _congestion_advice(budget: Budget, n: int, shape: Shape) -> str:
    if (budget.congestion or 0) < 1:
        return ""
    needs = _cache_needs(budget, -(-shape.heads * (n - 1) // math.floor(budget.congestion or 1)), shape)
    return f" That congestion would take {' and '.join(needs)}." if needs else ""


def _cache_needs(budget: Budget, total: int, shape: Shape) -> list[str]:
    """Limits that are too small for so many slots in all heads, and what they would have to be."""
    needed = {"slots": total / shape.states, "kib": total * shape.head_dim * shape.item_bytes / 1024}
    return [
        f"{name} ≥ {number_up(value)}"
        for name, value in needed.items()
        if name in budget.limits and not budget.allows(name, value)
    ]


def _heads(shape: Shape) -> str:
    layers = "" if shape.layers == 1 else f"each of {shape.layers} layers of "
    return f"{layers}{shape.heads} head{'s' * (shape.heads > 1)}"
