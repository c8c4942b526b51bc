"""The profile of a pattern at length n: hops, congestion, cache, growth and cost in one value."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from resolvent.analysis.congestion import Congestion, Effort, congestion
from resolvent.analysis.cost import Cost, cost
from resolvent.analysis.frontier import fewest_hops, least_congestion
from resolvent.analysis.growth import Growth, growth
from resolvent.analysis.hops import Hops, hops
from resolvent.analysis.lower_bounds import NEARBY, worst_nearby
from resolvent.patterns import Pattern, PatternLike, as_pattern
from resolvent.patterns.checks import require_length
from resolvent.rules import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 20_000_000  # some arrays have an entry per token


@dataclass(frozen=True)
class Reads:
    """Past positions read per token, excluding itself."""

    max: int
    mean: float


@dataclass(frozen=True)
class Least:
    """What any pattern needs that has no more cache slots over n tokens; None where not every pair is connected.

    Attributes:
        hops: The fewest hops, at most over all pairs of n tokens: n ≤ C(slots + hops, slots).
        congestion: The least congestion of copying n tokens: slots × congestion ≥ n - 1.
    """

    hops: int | None
    congestion: int | None


@dataclass(frozen=True)
class Profile:
    """What a pattern costs and what it can express on n tokens. `print(profile)` shows a summary.

    Attributes:
        pattern: The pattern.
        n: Number of tokens.
        nnz_a: Non-zeros of A, diagonal included.
        nnz_b: Non-zeros of B.
        reads_per_token: Past positions that a token reads, maximum and mean.
        cache_slots: Slots of the static decode cache for n tokens (the last token is not stored: nothing reads it).
        period: The pattern repeats after this many positions.
        max_hops: The largest number of hops over the connected pairs.
        mean_hops: The mean number of hops over the connected pairs.
        unreachable_pairs: Pairs without a path.
        congestion: Bounds on the congestion of copying n tokens by n positions, over 2n positions; None if the pattern
            is a table that ends before.
        congestion_nearby: The largest lower bound on congestion over the lengths within 8 of n: patterns can be lucky.
        least: The fewest hops and the least congestion that its cache allows.
        growth: How these quantities grow with n: proved for some patterns, fitted to computed values for the others.
        cost: Multiply-adds and bytes of a layer.
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
    congestion: Congestion | None
    congestion_nearby: int | float | None
    least: Least
    growth: Growth
    cost: Cost

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for JSON. Infinite congestion is the string "inf", which `float` parses."""
        bounds, nearby = self.congestion, self.congestion_nearby
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
            "congestion": None
            if bounds is None or nearby is None
            else {
                "lower": _finite(bounds.lower),
                "upper": _finite(bounds.upper),
                "exact": bounds.exact,
                "lower_by": bounds.lower_by,
                "upper_by": bounds.upper_by,
                "note": bounds.note,
                "nearby": _finite(nearby),
            },
            "least": asdict(self.least),
            "growth": asdict(self.growth),
            "cost": asdict(self.cost),
        }

    def to_json(self) -> str:
        """Convert to a JSON string."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def plot(self) -> Figure:
        """A page of figures: who reads whom, what is held, hops, load and growth.

        `plot().savefig("page.png")` writes a file.
        """
        from resolvent.analysis.figures.panels import profile_figure  # which needs matplotlib

        return profile_figure(self)

    def __repr__(self) -> str:
        hop_text = "no path for some pairs" if self.unreachable_pairs else plural(self.max_hops, "hop")
        return (
            f"Profile({self.pattern}, n={self.n:,}: {plural(self.reads_per_token.max, 'read')}, "
            f"{plural(self.cache_slots, 'slot')}, {hop_text}, congestion {describe(self.congestion)})"
        )

    def __str__(self) -> str:
        rows = (f"  {name:16} {value:58} {law}".rstrip() for name, value, law in self._rows())
        return "\n".join([self._title, *rows])

    @property
    def _title(self) -> str:
        layer = self.cost
        return (
            f"{self.pattern} on {plural(self.n, 'token')} "
            f"(layer of {plural(layer.heads, 'head')}, dimension {layer.head_dim}, {layer.item_bytes} bytes per number"
            f"{'' if layer.rule == 'softmax' else ', ' + layer.rule + ' coefficients'})"
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        grow, least, layer = self.growth, self.least, self.cost
        hop_text = f"{self.max_hops:,} at most, {self.mean_hops:,.2f} on average"
        if self.unreachable_pairs:
            hop_text = f"∞: {self.unreachable_pairs:,} pairs have no path; otherwise {hop_text}"
        fewest = "" if least.hops is None else _of_any(least.hops, self.cache_slots)
        rows = [
            ("non-zeros", f"A {self.nnz_a:,}   B {self.nnz_b:,}", ""),
            (
                "reads per token",
                f"{self.reads_per_token.max:,} at most, {self.reads_per_token.mean:,.2f} on average",
                grow.reads_per_token,
            ),
            ("cache", f"{plural(self.cache_slots, 'slot')}, {layer.cache_bytes / 1024:,.0f} KiB", grow.cache_slots),
            ("hops", hop_text, "" if self.unreachable_pairs else grow.max_hops),
            ("", fewest, ""),
            *self._congestion_rows(),
            ("period", f"{self.period:,}", ""),
            (
                "multiply-adds",
                f"{layer.forward_madds_per_token:,.0f} per token, {layer.training_madds_per_token:,.0f} in training",
                "",
            ),
        ]
        if grow.basis != "not defined":
            meaning = {"proved": "proved in docs/theory.md", "fitted": "fitted to computed values"}[grow.basis]
            rows.append(("growth", meaning, ""))
        return [row for row in rows if row[1]]

    def _congestion_rows(self) -> list[tuple[str, str, str]]:
        bounds, nearby, least = self.congestion, self.congestion_nearby, self.least
        if bounds is None or nearby is None:
            why_not = f"– (copying {self.n:,} tokens takes {2 * self.n:,} positions, and it has {self.pattern.limit:,})"
            return [("congestion", why_not, "")]
        rows = [("congestion", f"{describe(bounds)}  ({why(bounds)})", self.growth.congestion)]
        if not math.isinf(bounds.lower):
            rows.append(("", f"{describe_number(nearby)} at worst within {NEARBY} tokens of n", ""))
        if least.congestion is not None:
            rows.append(("", _of_any(least.congestion, self.cache_slots), ""))
        return rows


def _of_any(value: int, slots: int) -> str:
    return f"{value:,} is the least of any pattern with {plural(slots, 'slot')}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 slot`, `1,023 slots`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def describe(bounds: Congestion | None) -> str:
    """Format congestion bounds: `12`, `12 … 14`, `∞`, or `–` if there are none."""
    if bounds is None:
        return "–"
    if math.isinf(bounds.lower):
        return "∞"
    return f"{bounds.lower:,}" if bounds.exact else f"{bounds.lower:,} … {bounds.upper:,}"


def describe_number(value: int | float | None) -> str:
    """Format a number of hops or tokens: `12`, `∞`, or `–` if it is not defined."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:,}"


def why(bounds: Congestion) -> str:
    """Format the arguments for the two bounds."""
    if math.isinf(bounds.lower):
        return bounds.lower_by
    return f"≥ by {bounds.lower_by}, ≤ by {bounds.upper_by}" + (f"; {bounds.note}" if bounds.note else "")


def analyze(
    pattern: PatternLike,
    n: int | str,
    *,
    effort: Effort = "search",
    heads: int = 12,
    head_dim: int = 64,
    item_bytes: int = 4,
    rule: str | Rule = "softmax",
    kv_heads: int | None = None,
) -> Profile:
    """Compute the profile of a pattern on n tokens.

    Args:
        pattern: A pattern or its spelling.
        n: Number of tokens, as an integer or a string such as `"128k"`; at most 20 million.
        effort: How hard to search for routings of low congestion, see `congestion`.
        heads: Heads of the layer whose cost is computed.
        head_dim: Channels of each head.
        item_bytes: Bytes per number.
        rule: How A and B are parameterized, see `resolvent.rules`. Affects the cost only.
        kv_heads: Number of key and value heads. Default: `heads`. Affects the cost only.

    Returns:
        Hops, congestion, cache, growth and cost, and the least that its cache allows.

    >>> profile = analyze("exponential+cache", "1k")
    >>> profile.cache_slots, profile.max_hops, profile.least.hops
    (10, 10, 5)
    """
    pattern = as_pattern(pattern)
    n = require_length(n, most=_LONGEST)
    nnz_a, nnz_b = pattern.nonzeros(n)
    distances = hops(pattern, n)
    copies = pattern.limit is None or 2 * n <= pattern.limit
    bounds = congestion(pattern, n, effort) if copies else None
    return Profile(
        pattern=pattern,
        n=n,
        nnz_a=nnz_a,
        nnz_b=nnz_b,
        reads_per_token=Reads(pattern.widest_row(n), pattern.total_reads(n) / n),
        cache_slots=pattern.slots(n),
        period=min(math.lcm(*(stage.period(n) for stage in pattern.stages)), n),
        max_hops=distances.max,
        mean_hops=distances.mean,
        unreachable_pairs=distances.unreachable_pairs,
        congestion=bounds,
        congestion_nearby=None if bounds is None else max(worst_nearby(pattern, n), bounds.lower),
        least=_least(pattern, n, distances, bounds),
        growth=growth(pattern),
        cost=cost(pattern, n, heads=heads, head_dim=head_dim, item_bytes=item_bytes, rule=rule, kv_heads=kv_heads),
    )


def _least(pattern: Pattern, n: int, distances: Hops, bounds: Congestion | None) -> Least:
    """The bounds that follow from the number of slots; they presuppose that all pairs are connected."""
    slots = pattern.slots(n)
    copied = bounds is not None and not math.isinf(bounds.lower)
    return Least(
        None if distances.unreachable_pairs else int(fewest_hops(slots, n)),
        int(least_congestion(slots, n)) if copied else None,
    )


def _finite(value: int | float) -> int | str:
    return "inf" if math.isinf(value) else int(value)
