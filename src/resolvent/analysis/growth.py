"""Growth classes: which law fits a quantity that was computed at increasing n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from resolvent.analysis.hops import as_intervals, hops, reads_at_fixed_distances
from resolvent.analysis.lower_bounds import lower_bound
from resolvent.patterns import Lifetimes, Pattern, Stage
from resolvent.patterns.lifetimes import Binomial
from resolvent.patterns.stage import Strided

Law = Callable[[float], float]
Basis = Literal["proved", "fitted", "not defined"]

# Orders that docs/theory.md proves; patterns with finitely many strides, or with all, need no name.
_PROVED = ("exponential", "exponential+cache", "quadratic", "quadratic+cache")

_MOST_READS = 500_000  # listed to fit a law

_ROOTS = {Fraction(1, 2): "√n", Fraction(1, 3): "∛n"}
_POWERS = sorted(Fraction(p, q) for q in range(2, 6) for p in range(1, q) if math.gcd(p, q) == 1)


def _power(p: Fraction) -> Law:
    exponent = float(p)
    return lambda n: float(n) ** exponent


# From slowest to fastest.
_LAWS: tuple[tuple[str, Law], ...] = (
    ("O(log log n)", lambda n: math.log2(math.log2(n))),
    ("O(log n)", math.log2),
    *((f"O({_ROOTS.get(p, f'n^({p})')})", _power(p)) for p in _POWERS),
    ("O(n / log n)", lambda n: n / math.log2(n)),
    ("O(n)", lambda n: n),
)


def growth_class(sizes: list[int], values: list[float]) -> str:
    """The law a + b·g(n) that fits best, such as "O(log n)"; "infinite" or "O(1)" without a fit.

    Fluctuating values are replaced by their running maximum.
    """
    if len(sizes) < 4 or len(sizes) != len(values):
        raise ValueError(f"expected at least four sizes and as many values, got {len(sizes)} and {len(values)}.")
    if any(math.isinf(value) for value in values):
        return "infinite"
    highest = np.maximum.accumulate(np.array(values, dtype=float))
    if highest[-1] == highest[len(highest) // 2]:  # no growth over the upper half of the sizes
        return "O(1)"
    usable = [index for index in range(len(sizes) // 3, len(sizes)) if highest[index] > 0]  # skip irregular small sizes
    fitted, tail = [sizes[index] for index in usable], highest[usable]
    if len(set(tail.tolist())) <= 3:  # too few distinct values to distinguish laws: it grows, but slowly
        return _LAWS[0][0]
    return min(_LAWS, key=lambda law: _misfit([law[1](n) for n in fitted], tail))[0]


def _misfit(g: list[float], y: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Root mean square of the relative error of the best a + b·g with b > 0."""
    basis = np.stack([np.ones(len(g)), np.array(g)], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(basis, np.ones(len(y)), rcond=None)
    return float(np.sqrt(np.mean((basis @ [a, b] - 1) ** 2))) if b > 0 else math.inf


@dataclass(frozen=True)
class Growth:
    """How reads, cache, hops and congestion of a pattern grow with n.

    basis  "proved" (docs/theory.md), "fitted" to exact values (of congestion, to lower bounds), or "not defined" for a
           table, which has an end
    """

    reads_per_token: str
    cache_slots: str
    max_hops: str
    congestion: str
    basis: Basis


@lru_cache(maxsize=256)
def growth(pattern: Pattern) -> Growth:
    """Growth classes from exact values at growing lengths, as far as each is cheap.

    Patterns made of strides are followed to between 2^16 and 2^40 tokens, other contiguous columns to 2^18, and those
    whose reads are listed to 2^13 at most. A table has an end, and so no growth.
    """
    if pattern.limit is not None:
        return Growth(*4 * ("–",), basis="not defined")
    if isinstance(pattern, Lifetimes) and isinstance(pattern.lifetime, Binomial) and pattern.recurrent:
        # n ≤ C(s+h, s) is met at every length, and copies cross each cut through at most s positions: docs/theory.md
        return Growth("O(1)", "O(1)", _root(pattern.lifetime.size), "O(n)", "proved")
    stage = as_intervals(pattern)
    if isinstance(pattern, Strided):
        by_reads = _sizes(pattern, 4096, power=1)
        by_slots = _sizes(pattern, 1 << 17, power=2)  # slots need lattice steps up to n, which strides up to n² have
        by_hops = [2**t for t in range(8, 17 if stage is None else 21)]
    else:
        by_reads = by_slots = by_hops = _lengths(pattern)
    distances = [hops(pattern, n) for n in by_hops]
    most_hops = [math.inf if distance.unreachable_pairs else distance.max for distance in distances]
    hop_class = growth_class(by_hops, most_hops)
    if isinstance(pattern, Strided) and stage is not None:
        congestion_class = _cut_growth(stage, by_reads)
    elif reads_at_fixed_distances(pattern, by_hops[-1]):
        # C lies between d/2 and d: its maximum over all lengths up to n grows like the hops
        congestion_class = hop_class
    else:
        congestion_class = growth_class(by_hops, [lower_bound(pattern, n)[0] for n in by_hops])
    return Growth(
        reads_per_token=growth_class(by_reads, [_widest_nearby(pattern, n) for n in by_reads]),
        cache_slots=growth_class(by_slots, [pattern.slots(n) for n in by_slots]),
        max_hops=hop_class,
        congestion=congestion_class,
        basis=_basis(pattern),
    )


def _root(s: int) -> str:
    return "O(n)" if s == 1 else f"O({_ROOTS.get(Fraction(1, s), f'n^(1/{s})')})"


def _basis(pattern: Pattern) -> Basis:
    banded = as_intervals(pattern) is not None and pattern.is_shifted(1 << 12)  # a window, or the whole past
    return "proved" if banded or str(pattern) in _PROVED else "fitted"


def _lengths(pattern: Pattern) -> list[int]:
    """Lengths that are cheap enough for a pattern that is not one sequence of strides."""
    if as_intervals(pattern) is not None:
        return [2**t for t in range(8, 19)]
    if reads_at_fixed_distances(pattern, 1 << 17):
        return [2**t for t in range(8, 17)]
    top = 9
    while top < 13 and 2**top * pattern.reads(2 ** (top + 1) - 1) <= _MOST_READS:
        top += 1
    return [round(2 ** (t / 2)) for t in range(12, 2 * top + 1)]  # a factor of √2 apart: there are few


def _widest_nearby(pattern: Pattern, n: int) -> int:
    """The widest of some rows in the upper half: grows like `Pattern.widest_row`, but is cheaper."""
    return max(pattern.reads(int(i)) for i in np.linspace(n // 2, n - 1, 65))


def _sizes(pattern: Strided, most_strides: int, power: int) -> list[int]:
    """The sizes 2^8, 2^9, … up to 2^16, and further while there are few strides below n^power."""
    top = 8
    while top < 40 and power * (top + 1) <= 60 and len(pattern.offsets(2 ** (power * (top + 1)))) <= most_strides:
        top += 1
    return [2**t for t in range(8, max(top, 16) + 1)]


def _cut_growth(stage: Stage, sizes: list[int]) -> str:
    """The growth of the cut bound in the middle, n over the live positions, at the worst of three lengths per size."""
    if math.isinf(lower_bound(stage, 4096)[0]):
        return "infinite"
    lengths = [(n, n - 1, 2 * n // 3) for n in sizes]
    return growth_class(sizes, [max(-(-m // max(stage.reads(m), 1)) for m in trio) for trio in lengths])
