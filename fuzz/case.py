"""One case: its random choices, what it counts, and what is said of it if it is a finding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Difference(AssertionError):  # noqa: N818  # a finding, not an error of the fuzzer
    """Two ways to the same numbers that do not agree."""


class Case:
    """All that is random in a case follows from (seed, index); text seeds give the same on every machine."""

    def __init__(self, seed: int, index: int) -> None:
        self.random = random.Random(f"{seed}/operator/{index}")
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

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.random.getrandbits(60))

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), dtype=torch.float64, generator=self.generator())

    @contextmanager
    def threads(self) -> Iterator[None]:
        """One, or some: with more threads than heads, kernels divide the channels of a head."""
        torch.set_num_threads(self.choose([1, 1, 1, 2, 4]))
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def say(self, **facts: object) -> None:
        """Facts that a finding shows."""
        self.facts |= facts


Kinds = Mapping[str, tuple[Callable[[Case], None], int]]  # of cases, each with its weight


def kind_of(case: Case, kinds: Kinds) -> str:
    """The first choice of every case, so that it is known without running it."""
    return case.random.choices(list(kinds), [weight for _, weight in kinds.values()])[0]


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `finding` is empty if nothing is wrong with it."""

    index: int
    kind: str
    counts: Mapping[str, int]
    finding: str = ""
