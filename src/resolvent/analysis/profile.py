"""The profile: everything that can be said of a pattern at length n, as one value that prints itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from resolvent.analysis.coefficients import Coefficients
from resolvent.analysis.congestion import Congestion, Effort, congestion
from resolvent.analysis.cost import Cost, cost, nonzeros, total_reads
from resolvent.analysis.growth import Growth, growth, most_reads
from resolvent.analysis.hops import hops
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.errors import require_length

_LONGEST = 20_000_000  # some arrays have an entry per token


@dataclass(frozen=True)
class Reads:
    """Past positions read per token, itself not counted."""

    max: int
    mean: float


@dataclass(frozen=True)
class Profile:
    """What a pattern costs and what it can express on n tokens.

    nnz_a, nnz_b        non-zeros of A (diagonal included) and B
    reads_per_token     past positions a token reads
    cache_slots         slots of the static decode cache for n tokens (the n-th is written nowhere: nobody reads it)
    period              the pattern repeats after this many positions
    max_hops, mean_hops over the pairs that are connected at all; the others are counted in unreachable_pairs
    congestion          of copying n tokens n places on, over 2n positions
    growth              how these grow with n, fitted to exact values
    cost                multiply-adds and bytes for a layer of given heads
    """

    pattern: Pattern
    n: int
    nnz_a: int
    nnz_b: int
    reads_per_token: Reads
    cache_slots: int
    period: int
    max_hops: int
    mean_hops: float
    unreachable_pairs: int
    congestion: Congestion
    growth: Growth
    cost: Cost

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON. Infinite congestion is the text "inf", which `float` reads back."""
        bounds = self.congestion
        return {
            "pattern": str(self.pattern),
            "n": self.n,
            "nnz_a": self.nnz_a,
            "nnz_b": self.nnz_b,
            "reads_per_token": asdict(self.reads_per_token),
            "cache_slots": self.cache_slots,
            "period": self.period,
            "max_hops": self.max_hops,
            "mean_hops": self.mean_hops,
            "unreachable_pairs": self.unreachable_pairs,
            "congestion": {
                "lower": _finite(bounds.lower),
                "upper": _finite(bounds.upper),
                "exact": bounds.exact,
                "lower_by": bounds.lower_by,
                "upper_by": bounds.upper_by,
                "note": bounds.note,
            },
            "growth": asdict(self.growth),
            "cost": asdict(self.cost),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        grow, bounds, layer = self.growth, self.congestion, self.cost
        hop_text = f"{self.max_hops:,} at most, {self.mean_hops:,.2f} on average"
        if self.unreachable_pairs:
            hop_text = f"∞: {self.unreachable_pairs:,} pairs have no path; where there is one, {hop_text}"
        rows = [
            ("non-zeros", f"A {self.nnz_a:,}   B {self.nnz_b:,}", ""),
            (
                "reads per token",
                f"{self.reads_per_token.max:,} at most, {self.reads_per_token.mean:,.2f} on average",
                grow.reads_per_token,
            ),
            ("cache", f"{plural(self.cache_slots, 'slot')}, {layer.cache_bytes / 1024:,.0f} KiB", grow.cache_slots),
            ("hops", hop_text, "" if self.unreachable_pairs else grow.max_hops),
            ("congestion", f"{describe(bounds)}  ({why(bounds)})", grow.congestion),
            ("period", f"{self.period:,}", ""),
            (
                "multiply-adds",
                f"{layer.forward_madds_per_token:,.0f} per token, {layer.training_madds_per_token:,.0f} in training",
                "",
            ),
        ]
        title = (
            f"{self.pattern} on {plural(self.n, 'token')} "
            f"(layer of {plural(layer.heads, 'head')}, dimension {layer.head_dim}, {layer.item_bytes} bytes a number"
            f"{'' if layer.rule == 'softmax' else ', ' + layer.rule + ' coefficients'})"
        )
        return "\n".join([title, *(f"  {name:16} {value:58} {law}".rstrip() for name, value, law in rows)])


def plural(count: int, noun: str) -> str:
    """`1 slot`, `1,023 slots`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def describe(bounds: Congestion) -> str:
    """A congestion in a few characters: `12`, `12 … 14` or `∞`."""
    if math.isinf(bounds.lower):
        return "∞"
    return f"{bounds.lower:,}" if bounds.exact else f"{bounds.lower:,} … {bounds.upper:,}"


def why(bounds: Congestion) -> str:
    """The arguments behind the two bounds."""
    if math.isinf(bounds.lower):
        return bounds.lower_by
    return f"≥ by {bounds.lower_by}, ≤ by {bounds.upper_by}" + (f"; {bounds.note}" if bounds.note else "")


def analyze(
    spec: str | Pattern | Callable[[int], int],
    n: int,
    *,
    effort: Effort = "search",
    heads: int = 12,
    head_dim: int = 64,
    item_bytes: int = 4,
    rule: str | Coefficients = "softmax",
    kv_heads: int | None = None,
) -> Profile:
    """The profile of a pattern (or its spelling) on n tokens.

    `rule` and `kv_heads` change what the layer costs (see `cost`), not who reads whom.

    >>> analyze("exponential+cache", n=1024).cache_slots
    10
    """
    chosen = pattern(spec)
    n = require_length(n, most=_LONGEST)
    nnz_a, nnz_b = nonzeros(chosen, n)
    found = hops(chosen, n)
    return Profile(
        pattern=chosen,
        n=n,
        nnz_a=nnz_a,
        nnz_b=nnz_b,
        reads_per_token=Reads(most_reads(chosen, n), total_reads(chosen, n) / n),
        cache_slots=chosen.slots(n),
        period=chosen.period(n),
        max_hops=found.max,
        mean_hops=found.mean,
        unreachable_pairs=found.unreachable_pairs,
        congestion=congestion(chosen, n, effort),
        growth=growth(chosen),
        cost=cost(chosen, n, heads, head_dim, item_bytes, rule, kv_heads),
    )


def _finite(value: int | float) -> int | str:
    return "inf" if math.isinf(value) else int(value)
