"""What the paper says of language, as statements that the records of runs support, contradict or leave open.

A statement is about variants by name. `source` is the paper's sentence, shortened; questions that the paper leaves open
are marked as such.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Generic, Literal, Protocol, TypeVar, final

from resolvent.studies.grade import Grade, Scale, better, close, mean, no_worse
from resolvent.studies.language.variants import Variant, name_of

MARGIN, SINGLE, _ALIKE, _APART = 0.005, 0.02, 0.02, 0.05  # of perplexities
PERPLEXITY = Scale(*map(math.log1p, (MARGIN, SINGLE, _ALIKE, _APART)))  # of scores, which are minus losses
_CONSTANT = "softmax:gate=0.5"
_HALF, _DOUBT = 0.5, 0.1
_MARGINAL, _SIZEABLE = 0.05, 0.1  # shares of parameters
_SIGNS = {"better": "<", "no worse": "≤", "close": "≲"}


class Scored(Protocol):
    """Whatever has a score for each seed, larger where better."""

    @property
    def scores(self) -> list[float]: ...


Item = TypeVar("Item", bound=Scored, contravariant=True)


@dataclass(frozen=True)
class Statement(ABC, Generic[Item]):
    """Something that the paper says or leaves open. `str` is the comparison, `rule` how it is graded."""

    rule: ClassVar[str]

    source: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What must have been run."""

    def grade(self, variants: Mapping[str, Item]) -> Grade:
        """By its rule, from the variants that were run, by name."""
        if any(name not in variants for name in self.names):
            return "not run"
        return self._grade(*(variants[name] for name in self.names))

    @abstractmethod
    def _grade(self, *run: Item) -> Grade:
        """Of those named, all of which were run."""


@dataclass(frozen=True)
class OfOne(Statement[Item]):
    """About one variant."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class OfTwo(Statement[Item]):
    """About one variant beside another."""

    one: str
    other: str

    @property
    def names(self) -> tuple[str, ...]:
        return self.one, self.other


@final
@dataclass(frozen=True)
class Compared(OfTwo[Scored]):
    """Perplexities of two variants."""

    rule = (
        f"a < b: every seed of a has a perplexity below every seed of b by more than {MARGIN:.1%}, or {SINGLE:.0%} "
        "where either has a single seed; contradicted if it is the other way round by as much. a ≤ b: no seed of a is "
        f"above any of b by more than {MARGIN:.1%}; contradicted if b < a. a ≲ b: no seed of a is above any of b "
        f"by more than {_ALIKE:.0%}; contradicted if the mean of a is above that of b by more than {_APART:.0%}. "
        "Anything else is open."
    )

    relation: Literal["better", "no worse", "close"] = "better"

    def __str__(self) -> str:
        return f"{self.one} {_SIGNS[self.relation]} {self.other}"

    def _grade(self, *run: Scored) -> Grade:
        one, other = (each.scores for each in run)
        return {"better": better, "no worse": no_worse, "close": close}[self.relation](one, other, PERPLEXITY)


@final
@dataclass(frozen=True)
class LikeForLike(OfTwo[Variant]):
    """Perplexities of two variants that cost the same."""

    rule = (
        "a < b, like for like: every seed of a has a perplexity below every seed of b by more than "
        f"{MARGIN:.1%}, or {SINGLE:.0%} where either has a single seed; contradicted if it is the other way round by "
        "as much. Open otherwise, and whatever the seeds where caches differ, or parameters by more than 1%."
    )

    def __str__(self) -> str:
        return f"{self.one} < {self.other}"

    def _grade(self, *run: Variant) -> Grade:
        one, other = run
        return better(one.scores, other.scores, PERPLEXITY) if one.is_like(other) else "open"


@final
@dataclass(frozen=True)
class Most(OfOne[Scored]):
    """How much of the loss between two variants a third one closes, in nats."""

    rule = (
        "Most of the way: every seed of it goes more than half of the way between the mean losses of the other two; "
        f"contradicted if none does; with a single seed, {_HALF + _DOUBT:.0%} and {_HALF - _DOUBT:.0%}. Open if the "
        "far end is not better (<) at all."
    )

    to: str
    start: str = "first-order"

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.to, self.start

    def __str__(self) -> str:
        return f"{self.name} goes most of the way from {self.start} to {self.to}"

    def _grade(self, *run: Scored) -> Grade:
        own, to, start = (each.scores for each in run)
        if better(to, start, PERPLEXITY) != "supported":
            return "open"
        shares = [(score - mean(start)) / (mean(to) - mean(start)) for score in own]
        doubt = _DOUBT if len(shares) == 1 else 0
        if min(shares) > _HALF + doubt:
            return "supported"
        return "contradicted" if max(shares) < _HALF - doubt else "open"


@final
@dataclass(frozen=True)
class Curve(Statement[Scored]):
    """The best of each class is better than the best of the class before, which costs less."""

    rule = (
        "A curve: from class to class, the best variant of each is better (<) than the best of the one before; "
        "contradicted if one of these steps is. Best: by mean."
    )

    classes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return " > ".join("/".join(names) for names in self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for names in self.classes for name in names)

    def grade(self, variants: Mapping[str, Scored]) -> Grade:
        """One of each class is enough."""
        run = [[variants[name] for name in names if name in variants] for names in self.classes]
        if not all(run):
            return "not run"
        return self._grade(*(max(names, key=lambda variant: mean(variant.scores)) for names in run))

    def _grade(self, *run: Scored) -> Grade:
        steps = [better(b.scores, a.scores, PERPLEXITY) for a, b in pairwise(run)]
        if "contradicted" in steps:
            return "contradicted"
        return "supported" if set(steps) == {"supported"} else "open"


@final
@dataclass(frozen=True)
class Cheaper(OfTwo[Variant]):
    """A cost, which is arithmetic on the pattern and the rule."""

    rule = "Costs are exact: supported or contradicted, whatever the seeds."

    what: Literal["multiply-adds", "cache"]

    def __str__(self) -> str:
        return f"{self.what} of {self.one} < {self.what} of {self.other}"

    def _grade(self, *run: Variant) -> Grade:
        one, other = (v.mixing_madds if self.what == "multiply-adds" else v.cache_bytes for v in run)
        return "supported" if one < other else "contradicted"


@final
@dataclass(frozen=True)
class Marginal(OfTwo[Variant]):
    """How many more parameters one has than the other: exact, whatever the seeds."""

    rule = (
        f"Marginal: at most {_MARGINAL:.0%} more parameters; contradicted if it is more than {_SIZEABLE:.0%}; open "
        "between them."
    )

    def __str__(self) -> str:
        return f"{self.one} has few more parameters than {self.other}"

    def _grade(self, *run: Variant) -> Grade:
        one, other = run
        more = one.parameters / other.parameters - 1
        return "supported" if more <= _MARGINAL else "contradicted" if more > _SIZEABLE else "open"


@final
@dataclass(frozen=True)
class Overflows(OfOne[Variant]):
    """A way to normalize that the paper's computation overflows with: ours is another one, and cannot contradict it."""

    rule = (
        "Overflows: circumvented if every run of the computation in logarithms, which is not the paper's, ended with a "
        "finite loss and skipped no step; open otherwise."
    )

    def __str__(self) -> str:
        return f"{self.name} overflows"

    def _grade(self, *run: Variant) -> Grade:
        (own,) = run
        sound = all(math.isfinite(each.evaluation.loss) and not each.record.skipped_steps for each in own.runs)
        return "circumvented" if sound else "open"


TextStatement = Statement[Variant]
_CACHE = ("exponential", "exponential+cache"), ("quadratic", "quadratic+cache")

BAND = tuple(  # the paper speaks of O(1), and its figure has a band there, too, but the text compares with none
    Compared("asked, not claimed: sublinear access is better than a band of eight, which is O(1)", name, "order:8")
    for pair in _CACHE
    for name in pair
)
PARETO: tuple[TextStatement, ...] = (
    Compared("§5.3: at O(n) the resolvent sits slightly below or matches attention", "dense", "attention", "no worse"),
    Compared("§5.3: at O(n) the resolvent wins the bracket, surpassing attention", "dense", "attention"),
    Marginal("§6: with only a marginal increase in parameters", "dense", "attention"),
    Compared("§5.3: O(√n) gives the better results among sublinear designs", "quadratic", "exponential"),
    *(Compared("§5.3: cache-efficient variants always perform slightly worse", one, other) for one, other in _CACHE),
    *(Compared("§5.3: the gap of cache-efficient variants remains small", other, one, "close")
      for one, other in _CACHE),
    Compared("§5.3: local attention is largely beaten by its recurrent counterpart", "order:8", "local:8"),
    Compared("§5.3: first order still beats local attention", "first-order", "local:8"),
    *(Compared("§5.3: large gains occur when moving off O(1) to sublinear access", name, "first-order")
      for pair in _CACHE for name in pair),
    Most("§5.3: by O(log n) diminishing returns appear", "exponential", "dense"),
    *(Compared("§5.3: several cache-efficient models match the attention band", name, "attention", "close")
      for _, name in _CACHE),
    *(Most("§7: sublinear access captures most of the accuracy of dense mixing", name, "attention")
      for name in ("exponential+cache", "quadratic", "quadratic+cache")),
    Curve("§5.3: the points trace a clear speed-accuracy Pareto curve",
          (("first-order",), *_CACHE, ("attention", "dense"))),
    *BAND,
)  # fmt: skip


def pareto(_: Sequence[Variant]) -> list[TextStatement]:
    return list(PARETO)


def sharing(variants: Sequence[Variant]) -> list[TextStatement]:
    """For every structure in the records, and every rule that ties."""
    tied = dict.fromkeys(variant.rule for variant in variants if variant.rule.startswith("tied")) or ["tied"]
    pairs = [(name_of(structure, rule), structure) for structure in structures(variants) for rule in tied]
    return [
        *(
            Cheaper("appendix, weight sharing: the multiplication by A disappears", *pair, "multiply-adds")
            for pair in pairs
        ),
        *(Cheaper("appendix, weight sharing: the cache is smaller", *pair, "cache") for pair in pairs),
        *(Compared("asked, not claimed: A tied to B predicts as well", *pair, "close") for pair in pairs),
    ]


def normalization(variants: Sequence[Variant]) -> list[TextStatement]:
    """For every structure in the records."""
    helps = "appendix, parameterization: a gate that depends on the input helps, whatever the pattern of B"
    names = list(structures(variants))
    return [
        *(Compared(helps, name, name_of(name, _CONSTANT)) for name in names),
        *(
            Overflows("appendix, normalization: a softmax over the whole of T overflows", name_of(name, "joint"))
            for name in names
        ),
        *(
            Compared("asked, not claimed: a gate is better than a softmax over T", name, name_of(name, "joint"))
            for name in names
        ),
    ]


def structures(variants: Sequence[Variant]) -> Iterator[str]:
    """Each once."""
    yield from dict.fromkeys(variant.structure for variant in variants)


def rules(statements: Sequence[Statement[Variant]]) -> str:
    """How statements of these kinds are graded."""
    return " ".join(dict.fromkeys(type(statement).rule for statement in statements))
