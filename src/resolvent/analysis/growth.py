"""Growth classes, read off the numbers: which law fits a quantity that was computed at growing n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from resolvent.analysis.congestion import lower_bound, occupancy
from resolvent.analysis.hops import hops, hops_by_distance
from resolvent.patterns import Pattern

Law = Callable[[float], float]

_ROOTS = {Fraction(1, 2): "√n", Fraction(1, 3): "∛n"}
_POWERS = sorted(Fraction(p, q) for q in range(2, 6) for p in range(1, q) if math.gcd(p, q) == 1)


def _power(p: Fraction) -> Law:
    exponent = float(p)
    return lambda n: float(n) ** exponent


# From the slowest to the fastest.
_LAWS: tuple[tuple[str, Law], ...] = (
    ("O(log log n)", lambda n: math.log2(math.log2(n))),
    ("O(log n)", math.log2),
    *((f"O({_ROOTS.get(p, f'n^({p})')})", _power(p)) for p in _POWERS),
    ("O(n / log n)", lambda n: n / math.log2(n)),
    ("O(n)", lambda n: n),
)


def growth_class(sizes: list[int], values: list[float]) -> str:
    """The law a + b·g(n) that fits best, as text such as "O(log n)".

    Values that fluctuate count by their running maximum. "infinite" and "O(1)" where that is plain.
    """
    if len(sizes) < 4 or len(sizes) != len(values):
        raise ValueError(f"expected at least four sizes and as many values, got {len(sizes)} and {len(values)}.")
    if any(math.isinf(value) for value in values):
        return "infinite"
    highest = np.maximum.accumulate(np.array(values, dtype=float))
    if highest[-1] == highest[len(highest) // 2]:  # no growth over the upper half of the sizes
        return "O(1)"
    return min(_LAWS, key=lambda law: _misfit([law[1](n) for n in sizes], highest))[0]


def _misfit(g: list[float], y: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Root mean square of the relative error of the best a + b·g with b > 0."""
    basis = np.stack([np.ones(len(g)), np.array(g)], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(basis, np.ones(len(y)), rcond=None)
    return float(np.sqrt(np.mean((basis @ [a, b] - 1) ** 2))) if b > 0 else math.inf


@dataclass(frozen=True)
class Growth:
    """How the four costs of a pattern grow with n."""

    reads_per_token: str
    cache_slots: str
    max_hops: str
    congestion: str


@lru_cache(maxsize=256)
def growth(pattern: Pattern) -> Growth:
    """Growth classes from the exact values at n = 2^8, 2^9, … up to 2^20 (where a value is dearer, 2^16)."""
    near, far = [2**t for t in range(8, 17)], [2**t for t in range(8, 21)]
    hop_sizes = far if pattern.contiguous_columns else near
    most_hops = [math.inf if (found := hops(pattern, n)).unreachable_pairs else found.max for n in hop_sizes]
    return Growth(
        reads_per_token=growth_class(far, [most_reads(pattern, n) for n in far]),
        cache_slots=growth_class(near, [pattern.slots(n) for n in near]),
        max_hops=growth_class(hop_sizes, most_hops),
        congestion=growth_class(near, _congestion_bounds(pattern, near)),
    )


def most_reads(pattern: Pattern, n: int) -> int:
    """The widest row among the first n."""
    if pattern.period(n) == 1:
        return pattern.reads(n - 1)
    return int(occupancy(pattern, n).max())


def _congestion_bounds(pattern: Pattern, sizes: list[int]) -> list[float]:
    """A bound that grows as the congestion does: the lower one, or for translation-invariant patterns the hops d over
    the distance n, since d/2 < C ≤ d. Either may be small just at powers of two, so take the worst of three lengths.
    """
    lengths = [(n, n - 1, 2 * n // 3) for n in sizes]
    if pattern.contiguous_columns:
        return [max(lower_bound(pattern, m)[0] for m in trio) for trio in lengths]
    by_distance = hops_by_distance(pattern, max(sizes) + 1)
    return [max(math.inf if by_distance[m] < 0 else int(by_distance[m]) for m in trio) for trio in lengths]
