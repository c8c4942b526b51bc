"""What the paper says of language, as statements that the records of runs support, contradict or leave open.

A statement is about variants by name. `said` is the paper, shortened; what it leaves open is asked, and said to be.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, final

from resolvent.report.claims import Grade, Scale, better, close, no_worse
from resolvent.report.variants import Variant, name_of

_MARGIN, _SINGLE, _ALIKE, _APART = 0.005, 0.02, 0.02, 0.05  # of perplexities
PERPLEXITY = Scale(*map(math.log1p, (_MARGIN, _SINGLE, _ALIKE, _APART)))  # of scores, which are minus losses
_CONSTANT = "softmax:gate=0.5"
_HALF, _DOUBT = 0.5, 0.1
_SIGNS = {"better": "<", "no worse": "≤", "close": "≲"}

Found = Mapping[str, Variant]


@dataclass(frozen=True)
class Statement(ABC):
    """Something that the paper says or leaves open. `str` is what is compared, `rule` how."""

    rule: ClassVar[str]

    said: str

    @abstractmethod
    def grade(self, found: Found) -> Grade:
        """By its rule, from the variants that were run."""


@final
@dataclass(frozen=True)
class Compared(Statement):
    """Perplexities of two variants."""

    rule = (
        f"a < b: every seed of a has a perplexity below every seed of b by more than {_MARGIN:.1%}, or {_SINGLE:.0%} "
        "where either has a single seed; contradicted if it is the other way round by as much. a ≤ b: no seed of a is "
        f"above any of b by more than {_MARGIN:.1%}; contradicted if b < a. a ≲ b: no seed of a is above any of b "
        f"by more than {_ALIKE:.0%}; contradicted if the mean of a is above that of b by more than {_APART:.0%}. "
        "Anything else is open."
    )

    one: str
    other: str
    how: Literal["better", "no worse", "close"] = "better"

    def __str__(self) -> str:
        return f"{self.one} {_SIGNS[self.how]} {self.other}"

    def grade(self, found: Found) -> Grade:
        one, other = (found[name].scores if name in found else [] for name in (self.one, self.other))
        return {"better": better, "no worse": no_worse, "close": close}[self.how](one, other, PERPLEXITY)


@final
@dataclass(frozen=True)
class Most(Statement):
    """How much of the way from one variant to another a third one goes, in nats."""

    rule = (
        "Most of the way: every seed of it goes more than half of the way between the mean losses of the other two; "
        f"contradicted if none does; with a single seed, {_HALF + _DOUBT:.0%} and {_HALF - _DOUBT:.0%}. Open if the "
        "far end is not better (<) at all."
    )

    name: str
    to: str
    start: str = "first-order"

    def __str__(self) -> str:
        return f"{self.name} goes most of the way from {self.start} to {self.to}"

    def grade(self, found: Found) -> Grade:
        if any(name not in found for name in (self.name, self.to, self.start)):
            return "not run"
        start, to = found[self.start].scores, found[self.to].scores
        if better(to, start, PERPLEXITY) != "supported":
            return "open"
        shares = [(score - _mean(start)) / (_mean(to) - _mean(start)) for score in found[self.name].scores]
        doubt = _DOUBT if len(shares) == 1 else 0
        if min(shares) > _HALF + doubt:
            return "supported"
        return "contradicted" if max(shares) < _HALF - doubt else "open"


@final
@dataclass(frozen=True)
class Curve(Statement):
    """The best of each class is better than the best of the class before, which costs less."""

    rule = (
        "A curve: from class to class, the best variant of each is better (<) than the best of the one before; "
        "contradicted if one of these steps is. Best: by mean."
    )

    classes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return " > ".join("/".join(names) for names in self.classes)

    def grade(self, found: Found) -> Grade:
        run = [[found[name] for name in names if name in found] for names in self.classes]
        if not all(run):
            return "not run"
        best = [max(names, key=lambda variant: _mean(variant.scores)) for names in run]
        steps = [better(b.scores, a.scores, PERPLEXITY) for a, b in pairwise(best)]
        if "contradicted" in steps:
            return "contradicted"
        return "supported" if set(steps) == {"supported"} else "open"


@final
@dataclass(frozen=True)
class Cheaper(Statement):
    """A cost, which is arithmetic on the pattern and the rule."""

    rule = "Costs are exact: supported or contradicted, whatever the seeds."

    one: str
    other: str
    what: Literal["multiply-adds", "cache"]

    def __str__(self) -> str:
        return f"{self.what} of {self.one} < {self.what} of {self.other}"

    def grade(self, found: Found) -> Grade:
        if self.one not in found or self.other not in found:
            return "not run"
        one, other = (
            found[name].mixing_madds if self.what == "multiply-adds" else found[name].cache_bytes
            for name in (self.one, self.other)
        )
        return "supported" if one < other else "contradicted"


@final
@dataclass(frozen=True)
class Overflows(Statement):
    """A rule that cannot be trained for numerical errors."""

    rule = "Overflows: contradicted if every run ended with a finite loss and skipped no step; open otherwise."

    name: str

    def __str__(self) -> str:
        return f"{self.name} overflows"

    def grade(self, found: Found) -> Grade:
        if self.name not in found:
            return "not run"
        records = found[self.name].records
        sound = all(math.isfinite(r["evaluation"]["loss"]) and not r["skipped_steps"] for r in records)
        return "contradicted" if sound else "open"


@final
@dataclass(frozen=True)
class Keeps(Statement):
    """The longest contexts against those of the trained length: the same models on the same targets, seed by seed."""

    rule = (
        f"Keeps: for no seed is the perplexity in the longest contexts above that at the trained length by more than "
        f"{_MARGIN:.1%}; contradicted if it is for all, or by more than {_SINGLE:.0%} for a single one. Anything else "
        "is open."
    )

    name: str

    def __str__(self) -> str:
        return f"{self.name} keeps its perplexity"

    def grade(self, found: Found) -> Grade:
        if self.name not in found:
            return "not run"
        gains = []
        for record in found[self.name].records:
            losses = {e["context"]: e["loss"] for e in record.get("lengths", ())}
            if max(losses, default=0) > found[self.name].context:
                gains.append(losses[found[self.name].context] - losses[max(losses)])
        return no_worse(gains, [0.0] * len(gains), PERPLEXITY)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_CACHE = ("exponential", "exponential+cache"), ("quadratic", "quadratic+cache")

PARETO: tuple[Statement, ...] = (
    Compared("at O(n) the resolvent sits slightly below or matches attention", "dense", "attention", "no worse"),
    Compared("at O(n) the resolvent wins the bracket, surpassing attention", "dense", "attention"),
    Compared("O(√n) gives the better results among sublinear designs", "quadratic", "exponential"),
    *(Compared("cache-efficient variants always perform slightly worse", one, other) for one, other in _CACHE),
    *(Compared("the gap of cache-efficient variants remains small", other, one, "close") for one, other in _CACHE),
    Compared("local attention is largely beaten by its recurrent counterpart", "order:8", "local:8"),
    Compared("first order still beats local attention", "first-order", "local:8"),
    *(Compared("large gains occur when moving off O(1) to sublinear access", name, "first-order")
      for pair in _CACHE for name in pair),
    Most("by O(log n) diminishing returns appear", "exponential", "dense"),
    *(Compared("several cache-efficient models match the attention band", name, "attention", "close")
      for _, name in _CACHE),
    *(Most("sublinear access captures most of the accuracy of attention", name, "attention")
      for name in ("exponential+cache", "quadratic", "quadratic+cache")),
    Curve("the points trace a clear speed-accuracy Pareto curve", (("first-order",), *_CACHE, ("attention", "dense"))),
)  # fmt: skip


def pareto(_: Sequence[Variant]) -> list[Statement]:
    return list(PARETO)


def mamba(_: Sequence[Variant]) -> list[Statement]:
    said = "at first order Mamba's rule gives a small yet noticeable gain"
    return [Compared(said, name_of("first-order", "mamba"), "first-order")]


def sharing(found: Sequence[Variant]) -> list[Statement]:
    """For every structure in the records."""
    pairs = [(name_of(structure, "tied"), structure) for structure in structures(found)]
    return [
        *(Cheaper("the multiplication by A disappears", *pair, "multiply-adds") for pair in pairs),
        *(Cheaper("the cache is smaller", *pair, "cache") for pair in pairs),
        *(Compared("asked, not claimed: A tied to B predicts as well", *pair, "close") for pair in pairs),
    ]


def normalisation(found: Sequence[Variant]) -> list[Statement]:
    """For every structure in the records."""
    helps = "a gate that depends on the input helps, whatever the pattern of B"
    names = list(structures(found))
    return [
        *(Compared(helps, name, name_of(name, _CONSTANT)) for name in names),
        *(Overflows("a softmax over the whole of T overflows", name_of(name, "whole")) for name in names),
        *(Compared("asked, not claimed: a gate is better than a softmax over T", name, name_of(name, "whole"))
          for name in names),
    ]  # fmt: skip


def length(found: Sequence[Variant]) -> list[Statement]:
    """For every variant in the records."""
    return [Keeps("asked, not claimed: models hold in longer contexts", variant.name) for variant in found]


def structures(found: Sequence[Variant]) -> Iterator[str]:
    """Each once."""
    yield from dict.fromkeys(variant.structure for variant in found)


def rules(statements: Sequence[Statement]) -> str:
    """How statements of these kinds are graded."""
    return " ".join(dict.fromkeys(type(statement).rule for statement in statements))
