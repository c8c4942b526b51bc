"""One case: its random choices, what it counts, and what is said of it if it is a finding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Difference(AssertionError):  # noqa: N818  # a finding, not an error of the fuzzer
    """Two ways to the same numbers that do not agree."""


class Case:
    """All that is random in a case follows from (seed, fuzzer, index); text seeds give the same on every machine."""

    def __init__(self, seed: int, fuzzer: str, index: int) -> None:
        self.random = random.Random(f"{seed}/{fuzzer}/{index}")
        self.counts: Counter[str] = Counter()
        self.facts: dict[str, object] = {}

    def choose(self, options: Sequence[T]) -> T:
        """One of these; some stand there several times to be chosen more often."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def integer(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def splits(self, n: int) -> list[int]:
        """Sizes that sum to n, zeros among them."""
        cuts = sorted(self.integer(0, n) for _ in range(self.choose([0, 1, 1, 2, 3, 6])))
        return [after - before for before, after in zip([0, *cuts], [*cuts, n], strict=True)]

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def say(self, **facts: object) -> None:
        """Facts that a finding shows."""
        self.facts |= facts


Kind = Callable[[Case], None]


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class Fuzzer:
    """Kinds of cases under one name, each with its weight. Every exception of a case is a finding.

    `prepare` makes what all cases share; it is called before each of them, and its time is not theirs.
    """

    name: str
    kinds: Mapping[str, tuple[Kind, int]]
    prepare: Callable[[], None] = nothing

    def kind(self, case: Case) -> str:
        """The first choice of every case, so that it is known without running it."""
        names = list(self.kinds)
        return case.random.choices(names, [self.kinds[name][1] for name in names])[0]


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `finding` is empty if nothing is wrong with it."""

    index: int
    kind: str
    counts: Mapping[str, int]
    finding: str = ""
