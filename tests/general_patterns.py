"""Patterns beyond one sequence of strides, each with the rows that it should have, written from its definition."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

import resolvent as rv
from resolvent.patterns.lifetimes import Lifetime, Lifetimes
from resolvent.patterns.strides import Integers
from tests.oracles import (
    Rows,
    binomial_rows,
    cache_efficient_sets,
    fenwick_rows,
    random_lives,
    random_rows,
    translation_invariant_sets,
)


class Case(NamedTuple):
    """A pattern and the rows of A and of B; A's are None where they are B's."""

    pattern: rv.Pattern
    later: Rows
    first: Rows | None = None

    @property
    def rows(self) -> Rows:
        return self.later if self.first is None else [a | b for a, b in zip(self.first, self.later, strict=True)]


@dataclass(frozen=True)
class GivenLives(Lifetime):
    """Lifetimes from a list; later positions live for one token. A slot for every position."""

    values: tuple[int, ...]

    @property
    def spelling(self) -> str:
        return "given-lives"

    @property
    def reads_several(self) -> bool:
        return True

    def sources(self, i: int) -> list[int]:
        return [j for j in range(i) if i - j <= self.life(j)]

    def life(self, j: int) -> int:
        return self.values[j] if j < len(self.values) else 1

    def lives(self, n: int) -> Integers:
        return np.array([min(self.life(j), n) for j in range(n)])

    def slot(self, j: int) -> int:
        return j

    def slots_of(self, positions: Integers) -> Integers:
        return positions

    def slots(self, n: int) -> int:
        return n - 1


def explicit(rows: Rows) -> rv.Pattern:
    return rv.explicit(lambda i: sorted(rows[i]), len(rows))


def lifetimes(rows: Rows) -> rv.Pattern:
    last = [max([i for i, row in enumerate(rows) if j in row], default=j) for j in range(len(rows))]
    return Lifetimes(GivenLives(tuple(i - j for j, i in enumerate(last))))


@cache
def cases(n: int) -> dict[str, Case]:
    """Four pairs, four random tables (one not connected), random lifetimes, Fenwick and binomial, on n tokens."""
    whole = [set(range(i)) for i in range(n)]
    one = translation_invariant_sets([1], n)
    window = translation_invariant_sets(range(1, 8), n)
    powers = [2**k for k in range(20)]
    squares = [k * k + 1 for k in range(n)]
    sparse, dense, loose = random_rows(n, 1.5, 1), random_rows(n, 4, 2), random_rows(n, 1.5, 3, chain=False)
    short, long = random_lives(n, 4, 5), random_lives(n, max(n // 2, 1), 6)
    return {
        "attention/first-order": Case(rv.pattern("attention/first-order"), one, whole),
        "local:8/exponential+cache": Case(
            rv.pattern("local:8/exponential+cache"), cache_efficient_sets(powers, n), window
        ),
        "local:3/order:5": Case(
            rv.pattern("local:3/order:5"),
            translation_invariant_sets(range(1, 6), n),
            translation_invariant_sets(range(1, 3), n),
        ),
        "exponential/order:2": Case(
            rv.pattern("exponential/order:2"),
            translation_invariant_sets([1, 2], n),
            translation_invariant_sets(powers, n),
        ),
        "quadratic+cache/explicit": Case(
            rv.pair("quadratic+cache", explicit(sparse)), sparse, cache_efficient_sets(squares, n)
        ),
        "explicit, sparse": Case(explicit(sparse), sparse),
        "explicit, dense": Case(explicit(dense), dense),
        "explicit, not connected": Case(explicit(loose), loose),
        "lifetimes, short": Case(lifetimes(short), short),
        "lifetimes, long": Case(lifetimes(long), long),
        "explicit lifetimes": Case(explicit(long), long),
        "fenwick": Case(rv.pattern("fenwick"), fenwick_rows(n)),
        "binomial:1": Case(rv.pattern("binomial:1"), binomial_rows(1, n)),
        "binomial:3": Case(rv.pattern("binomial:3"), binomial_rows(3, n)),
        "two-hop": Case(explicit(two_hops(n)), two_hops(n)),
    }


def two_hops(n: int) -> Rows:
    """Token i reads what is left of i as its lowest bits are cleared, and all tokens since the last of these."""
    rows = []
    for i in range(n):
        left, row = i, set(range(i - (i & -i), i))
        while left:
            left &= left - 1
            row.add(left)
        rows.append(row - {i})
    return rows


NAMES = list(cases(2))
