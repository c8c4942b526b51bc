"""What the paper says of the synthetic tasks: its numbers, the comparisons that its text makes, and those of its table.

Whether a comparison says *better* or *alike* follows from the paper's own figures, by the rule that ours are graded by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from resolvent.studies.grade import Grade, Scale, alike, better, mean

Scores = Mapping[tuple[str, str], Sequence[float]]  # (task, structure) → accuracy of each seed

ACCURACY = Scale(margin=0.01, single=0.05, alike=0.02, apart=0.1)
SOLVED, FAR = 0.99, 0.9
RULE = (
    f"Better (>): every seed of the one is above every seed of the other by more than {ACCURACY.margin:.0%}; "
    "contradicted if it is the other way round by as much. Alike (=): all seeds of both lie within "
    f"{ACCURACY.alike:.0%}; contradicted if the means differ by more than {ACCURACY.apart:.0%}. Solved: every seed "
    f"has {SOLVED:.0%} or more; contradicted if the mean is below {FAR:.0%}. Anything else is open. Where there is a "
    f"single seed, {ACCURACY.single:.0%} are needed. A comparison is of the kind that the paper's own figures are: "
    f"alike if they lie within {ACCURACY.alike:.0%}."
)

PAPER: dict[tuple[str, str], float] = {
    (task, name): value / 100
    for name, values in {
        "attention": (100.00, 100.00, 39.21),
        "local:8": (23.75, 26.20, 23.59),
        "first-order": (42.98, 32.53, 27.17),
        "order:8": (74.66, 41.12, 39.08),
        "dense": (100.00, 99.99, 99.80),
        "exponential": (92.63, 49.03, 34.85),
        "exponential+cache": (75.47, 52.59, 38.63),
        "quadratic": (99.66, 53.61, 35.68),
        "quadratic+cache": (91.59, 54.56, 38.02),
    }.items()
    for task, value in zip(("copy", "recall", "multihop"), values, strict=True)
}


@dataclass(frozen=True)
class Claim(ABC):
    """A statement of the paper about a task, with its place. `str` says what is compared."""

    source: str
    task: str

    @abstractmethod
    def grade(self, scores: Scores) -> Grade:
        """By `RULE`."""


@final
@dataclass(frozen=True)
class Ranked(Claim):
    """Two structures: one better than the other, or alike."""

    one: str
    other: str

    @property
    def alike(self) -> bool:
        """Whether the paper's own figures are."""
        return abs(PAPER[self.task, self.one] - PAPER[self.task, self.other]) <= ACCURACY.alike

    def __str__(self) -> str:
        return f"{self.task}: {self.one} {'=' if self.alike else '>'} {self.other}"

    def grade(self, scores: Scores) -> Grade:
        one, other = (scores.get((self.task, name), ()) for name in (self.one, self.other))
        return (alike if self.alike else better)(one, other, ACCURACY)


@final
@dataclass(frozen=True)
class Solves(Claim):
    """A structure that makes no errors."""

    name: str

    def __str__(self) -> str:
        return f"{self.task}: {self.name} solves it"

    def grade(self, scores: Scores) -> Grade:
        seeds = scores.get((self.task, self.name), ())
        if not seeds:
            return "not run"
        if min(seeds) >= SOLVED:
            return "supported"
        return "contradicted" if mean(seeds) < FAR else "open"


_TASKS = ("copy", "recall", "multihop")
_STRIDED = ("exponential", "exponential+cache", "quadratic", "quadratic+cache")
_CACHE = (("exponential+cache", "exponential"), ("quadratic+cache", "quadratic"))
_ONLY_DENSE = "§5.2.2: only dense A and B solve all tasks"
_ATTENTION = "§5.2.2: attention works as well for copy and recall, and struggles on multi-hop"
_LOCAL = "§5.2.2: local attention performs poorly across all settings"
_BANDED = "§5.2.2: the banded structure falls behind patterns with more long-distance connections"
_QUADRATIC = "§5.2.2: k²+1 seems better than 2^k, although not by a big margin"
_NEAR = "§5.2.2: k²+1 reaches a near perfect score on copy"
_SOMETIMES = "§5.2.2: cache-efficient variants even sometimes outperform their original counterparts"

TEXT: tuple[Claim, ...] = (
    *(Solves(_ONLY_DENSE, task, "dense") for task in _TASKS),
    *(Ranked(_ATTENTION, task, "attention", "dense") for task in ("copy", "recall")),
    Ranked(_ATTENTION, "multihop", "dense", "attention"),
    *(Ranked(_LOCAL, task, "first-order", "local:8") for task in _TASKS),
    *(Ranked(_BANDED, task, name, "order:8") for task in ("copy", "recall") for name in _STRIDED),
    *(Ranked(_QUADRATIC, task, "quadratic", "exponential") for task in _TASKS),
    Solves(_NEAR, "copy", "quadratic"),
    *(Ranked(_SOMETIMES, task, *pair) for task in ("recall", "multihop") for pair in _CACHE),
)


def _table() -> Iterator[Claim]:
    """Neighbours in each column of the paper's table, from the highest accuracy to the lowest, unless the text has
    them already.
    """
    in_text = {(claim.task, *sorted((claim.one, claim.other))) for claim in TEXT if isinstance(claim, Ranked)}
    for task in _TASKS:
        column = sorted((name for of, name in PAPER if of == task), key=lambda name: -PAPER[task, name])
        for one, other in pairwise(column):
            if (task, *sorted((one, other))) not in in_text:
                yield Ranked(f"Table 1, {task}: neighbours in its order", task, one, other)


CLAIMS: tuple[Claim, ...] = (*TEXT, *_table())
