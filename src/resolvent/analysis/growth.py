"""Growth classes, read off the numbers: which law fits a quantity that was computed at growing n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from resolvent.analysis.congestion import lower_bound, occupancy
from resolvent.analysis.hops import hops
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
    settled = [index for index in range(len(sizes) // 3, len(sizes)) if highest[index] > 0]  # past the first oddities
    fitted, tail = [sizes[index] for index in settled], highest[settled]
    if len(set(tail.tolist())) <= 3:  # too few steps to tell laws apart: it grows, but barely
        return _LAWS[0][0]
    return min(_LAWS, key=lambda law: _misfit([law[1](n) for n in fitted], tail))[0]


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
    """Growth classes from exact values at n = 2^8, 2^9, …, as far as each is cheap: to 2^16 at least, 2^40 at most."""
    by_reads = _sizes(pattern, 4096, power=1)
    by_slots = _sizes(pattern, 1 << 17, power=2)  # slots need lattice steps up to n, which strides up to n² have
    by_hops = [2**t for t in range(8, 21 if pattern.contiguous_columns else 17)]
    most_hops = [math.inf if (found := hops(pattern, n)).unreachable_pairs else found.max for n in by_hops]
    hop_class = growth_class(by_hops, most_hops)
    return Growth(
        reads_per_token=growth_class(by_reads, [_widest_nearby(pattern, n) for n in by_reads]),
        cache_slots=growth_class(by_slots, [pattern.slots(n) for n in by_slots]),
        max_hops=hop_class,
        # Where columns are broken the pattern is translation-invariant, and C lies between d/2 and d: the worst n up to
        # any length grows as the hops do.
        congestion=_cut_growth(pattern, by_reads) if pattern.contiguous_columns else hop_class,
    )


def most_reads(pattern: Pattern, n: int) -> int:
    """The widest row among the first n."""
    if pattern.period(n) == 1:
        return pattern.reads(n - 1)
    return int(occupancy(pattern, n).max())


def _widest_nearby(pattern: Pattern, n: int) -> int:
    """The widest of some rows in the upper half: the growth of `most_reads` without its cost."""
    return max(pattern.reads(int(i)) for i in np.linspace(n // 2, n - 1, 65))


def _sizes(pattern: Pattern, most_strides: int, power: int) -> list[int]:
    """2^8, 2^9, … up to 2^16, and on while there are few strides below n^power."""
    top = 8
    while top < 40 and power * (top + 1) <= 60 and len(pattern.offsets(2 ** (power * (top + 1)))) <= most_strides:
        top += 1
    return [2**t for t in range(8, max(top, 16) + 1)]


def _cut_growth(pattern: Pattern, sizes: list[int]) -> str:
    """The cut in the middle, n over the positions live there, at the worst of three lengths for each size."""
    if math.isinf(lower_bound(pattern, 4096)[0]):
        return "infinite"
    lengths = [(n, n - 1, 2 * n // 3) for n in sizes]
    return growth_class(sizes, [max(-(-m // max(pattern.reads(m), 1)) for m in trio) for trio in lengths])
