"""Patterns that others have published, with their sources and what their authors claim.

All are causal, have no end and count positions from 0. Only the reads are as published: these patterns are recurrent
like every family, and `+attention` leaves the feedback out. Log-linear attention, from which `fenwick` is taken, reads
matrix states out with a weight for each level, which is not among the rules here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import final

import numpy as np

from resolvent.errors import PatternError
from resolvent.patterns.explicit import Explicit
from resolvent.patterns.expression import LARGEST_STRIDE
from resolvent.patterns.family import Family, Number, parse_numbers
from resolvent.patterns.lifetimes import Fenwick, GlobalAndWindow, Lifetimes
from resolvent.patterns.stage import Stage
from resolvent.patterns.strides import Integers, Strides, counting, frozen, power_of_two, require_few
from resolvent.patterns.table import NamedReads
from resolvent.patterns.translation_invariant import TranslationInvariant

_MOST_RANDOM = 1024  # drawn one by one
_GAMMA, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Windowed(Strides):
    """Every distance from 1 to `window`, and without end those beyond it that `beyond` has."""

    window: int

    @abstractmethod
    def beyond(self, limit: int) -> range | list[int]:
        """The distances > window and < limit, ascending."""

    @property
    def last(self) -> None:
        return None

    def below(self, limit: int) -> Integers:
        known = _listed(self, power_of_two(max(limit, 1024)))
        return known[: known.searchsorted(limit)]


@final
@dataclass(frozen=True)
class SparseTransformer(Windowed):
    """1, 2, …, l, and the multiples of l: the strided pattern of the Sparse Transformer, both of its heads in one."""

    window: int

    @property
    def spelling(self) -> str:
        return f"sparse-transformer:{self.window}"

    @property
    def far_gap(self) -> int:
        return self.window

    def beyond(self, limit: int) -> range:
        return range(2 * self.window, limit, self.window)


@final
@dataclass(frozen=True)
class LogSparse(Windowed):
    """1, 2, …, w, and w + 1, w + 2, w + 4, …: the LogSparse pattern with a local window of w."""

    window: int

    @property
    def spelling(self) -> str:
        return f"logsparse:{self.window}" if self.window else "logsparse"

    def beyond(self, limit: int) -> list[int]:
        farther = max(limit - 1 - self.window, 0)
        return [self.window + 2**k for k in range(farther.bit_length())]


@final
@dataclass(frozen=True)
class Dilated(Strides):
    """d, 2d, …, wd: a window of w positions with gaps."""

    size: int
    gap: int

    def __post_init__(self) -> None:
        if self.size * self.gap > LARGEST_STRIDE:
            raise PatternError(f"{self.spelling!r} reads farther than any sequence is long: expected w·d ≤ 2**62.")

    @property
    def spelling(self) -> str:
        return f"dilated:{self.size},{self.gap}"

    @property
    def last(self) -> int:
        return self.size * self.gap

    def below(self, limit: int) -> Integers:
        count = min(self.size, max(limit - 1, 0) // self.gap)
        return frozen(self.gap * np.arange(1, count + 1, dtype=np.int64))


@lru_cache(maxsize=64)
def _listed(strides: Windowed, limit: int) -> Integers:
    near, far = min(strides.window, limit - 1), strides.beyond(limit)
    require_few(near + len(far), strides, limit)
    return frozen(np.concatenate([counting(near + 1)[1:], np.array(far, dtype=np.int64)]))


def butterfly_reads(i: int) -> Integers:
    """Token i with one of its set bits cleared, for each of them.

    >>> butterfly_reads(13)
    array([ 5,  9, 12])
    """
    return np.array([i - (1 << k) for k in range(i.bit_length() - 1, -1, -1) if i >> k & 1], dtype=np.int64)


def two_hop_reads(i: int) -> Integers:
    """The lowbit(i) tokens before i, and i with more of its lowest set bits cleared, but not all.

    From i to any j < i: let k be the highest bit in which they differ. Token m, which is i with all bits below k
    cleared, is i itself or read by it, and reads the 2^k tokens before it; j is among them.

    >>> two_hop_reads(22), two_hop_reads(24)
    (array([16, 20, 21]), array([16, 17, 18, 19, 20, 21, 22, 23]))
    """
    start = i & (i - 1) if i else 0
    medians, rest = [], start
    while rest & (rest - 1):
        rest &= rest - 1
        medians.append(rest)
    return np.array([*medians[::-1], *range(start, i)], dtype=np.int64)


def bigbird_reads(window: int, fixed: int, random: int, seed: int, i: int) -> Integers:
    """The first `fixed` tokens, the last `window` before i, and `random` of those between, which (seed, i) chooses.

    >>> bigbird_reads(2, 1, 2, 0, 100)
    array([ 0, 51, 61, 98, 99])
    """
    first = min(fixed, i)
    start = max(first, i - window)
    chosen = sample(start - first, random, splitmix64(splitmix64(seed) ^ i))
    between = [first + each for each in sorted(chosen)]
    return np.array([*range(first), *between, *range(start, i)], dtype=np.int64)


def sample(size: int, count: int, state: int) -> set[int]:
    """`count` different integers below `size`, or all if there are no more: Floyd's algorithm."""
    if count >= size:
        return set(range(size))
    chosen: set[int] = set()
    for number, last in enumerate(range(size - count, size)):
        drawn = splitmix64(state + number * _GAMMA) % (last + 1)
        chosen.add(last if drawn in chosen else drawn)
    return chosen


def splitmix64(state: int) -> int:
    """The output of the SplitMix64 generator (Steele, Lea and Flood, 2014) after one step from a state.

    Written out, so that patterns stay what they are whatever the version of NumPy.
    """
    z = (state + _GAMMA) & _WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def _sparse_transformer(argument: str) -> Stage:
    (window,) = parse_numbers("sparse-transformer", argument, [Number("l", 1)])
    return TranslationInvariant(SparseTransformer(window))


def _longformer(argument: str) -> Stage:
    return Lifetimes(GlobalAndWindow(*parse_numbers("longformer", argument, [Number("w", 1), Number("g")])))


def _bigbird(argument: str) -> Stage:
    numbers = [Number("w", 1), Number("g"), Number("r", most=_MOST_RANDOM), Number("seed", most=_WORD)]
    window, fixed, random, seed = (*parse_numbers("bigbird", argument, numbers, required=3), 0)[:4]
    name = f"bigbird:{window},{fixed},{random}{f',{seed}' if seed else ''}"
    return Explicit(NamedReads(name, partial(bigbird_reads, window, fixed, random, seed)))


def _logsparse(argument: str) -> Stage:
    return TranslationInvariant(LogSparse(*parse_numbers("logsparse", argument, [Number("w")])))


def _dilated(argument: str) -> Stage:
    return TranslationInvariant(Dilated(*parse_numbers("dilated", argument, [Number("w", 1), Number("d", 1)])))


PUBLISHED = (
    Family(
        "sparse-transformer",
        "the last l positions and every l-th before them; l near √n",
        _sparse_transformer,
        "l",
        "3",
        default="32",
        source="Child, Gray, Radford and Sutskever 2019, Generating Long Sequences with Sparse Transformers (strided)",
        claim="O(n √n) for l near √n; any position in two steps",
    ),
    Family(
        "longformer",
        "the last w positions and the first g; the same as attention sinks",
        _longformer,
        "w,g",
        "2,1",
        source="Beltagy, Peters and Cohan 2020, Longformer: The Long-Document Transformer",
        claim="O(n w); a receptive field of w times the number of layers, and the global tokens",
    ),
    Family(
        "bigbird",
        "the last w positions, the first g, and r random ones between, which the seed and the token choose",
        _bigbird,
        "w,g,r[,seed]",
        "2,1,1",
        source="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences",
        claim="O(n) for fixed w, g, r; a universal approximator, and short paths thanks to global and random reads",
    ),
    Family(
        "logsparse",
        "the last w positions, then 1, 2, 4, 8, … before them",
        _logsparse,
        "w",
        "2",
        default="0",
        source="Li et al. 2019, Enhancing the Locality and Breaking the Memory Bottleneck of Transformer on Time "
        "Series Forecasting",
        claim="O(n log n) for each layer; any position within about log n layers",
    ),
    Family(
        "dilated",
        "w positions with gaps: d, 2d, …, wd back; with one d > 1 most pairs have no path, so mix several",
        _dilated,
        "w,d",
        "3,2",
        source="Beltagy, Peters and Cohan 2020, Longformer (dilated sliding window); Ding et al. 2023, LongNet",
        claim="O(n w), with a receptive field d times as wide; LongNet: with many d, any pair in O(log n) steps",
    ),
    Family(
        "butterfly",
        "its own number with one set bit cleared: the causal half of a butterfly graph, with paths from i to j only "
        "where i has all bits of j",
        lambda _: Explicit(NamedReads("butterfly", butterfly_reads)),
        source="Dao et al. 2019, Learning Fast Algorithms for Linear Transforms Using Butterfly Factorizations",
        claim="O(n log n) for a product of log n factors, which connects all pairs",
    ),
    Family(
        "fenwick",
        "the prefix sums of a Fenwick tree, O(log n) of them",
        lambda _: Lifetimes(Fenwick()),
        source="Guo et al. 2025, Log-Linear Attention",
        claim="O(n log n) to train, O(log n) time and memory for each decoded token",
    ),
    Family(
        "two-hop",
        "the lowbit(i) positions before i, and i with its lowest set bits cleared: medians of dyadic intervals",
        lambda _: Explicit(NamedReads("two-hop", two_hop_reads)),
        source="Alon and Schieber 1987, Optimal Preprocessing for Answering On-Line Product Queries (k = 2)",
        claim="Θ(n log n) reads in all are enough for two steps between any pair, and necessary",
    ),
)
