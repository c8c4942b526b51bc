"""How claims are graded from the seeds of runs, by one rule; and the paper's claims about its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Grade = Literal["supported", "contradicted", "open", "not run"]
Scores = Mapping[tuple[str, str], Sequence[float]]  # (task, structure) → accuracy of each seed


@dataclass(frozen=True)
class Scale:
    """How far apart scores must lie to count. Scores are larger where better.

    margin   between the seeds of the better and those of the worse; `single` where either has one seed alone
    alike    at most between all seeds of what is alike
    apart    at least between the means of what is not
    """

    margin: float
    single: float
    alike: float
    apart: float


def better(one: Sequence[float], other: Sequence[float], scale: Scale) -> Grade:
    """Every seed of the one above every seed of the other, or the other way round."""
    if not one or not other:
        return "not run"
    margin = scale.margin if min(len(one), len(other)) > 1 else scale.single
    if min(one) > max(other) + margin:
        return "supported"
    return "contradicted" if min(other) > max(one) + margin else "open"


def no_worse(one: Sequence[float], other: Sequence[float], scale: Scale) -> Grade:
    """Every seed of the one above every seed of the other, or below it by the margin at most."""
    opposite = better(other, one, scale)
    if opposite in ("not run", "supported"):
        return "not run" if opposite == "not run" else "contradicted"
    return "supported" if min(one) >= max(other) - scale.margin else "open"


def close(one: Sequence[float], other: Sequence[float], scale: Scale) -> Grade:
    """No seed of the one far below any of the other, or its mean far below the other's. To be better is fine."""
    if not one or not other:
        return "not run"
    if min(one) >= max(other) - scale.alike:
        return "supported"
    return "contradicted" if sum(other) / len(other) - sum(one) / len(one) > scale.apart else "open"


def alike(one: Sequence[float], other: Sequence[float], scale: Scale) -> Grade:
    """All seeds of both close together, or their means apart."""
    if not one or not other:
        return "not run"
    if max(*one, *other) - min(*one, *other) <= scale.alike:
        return "supported"
    apart = abs(sum(one) / len(one) - sum(other) / len(other)) > scale.apart
    return "contradicted" if apart else "open"


ACCURACY = Scale(margin=0.01, single=0.05, alike=0.02, apart=0.1)
RULE = (
    f"Better: every seed of the one is above every seed of the other by more than {ACCURACY.margin:.0%}; contradicted "
    f"if it is the other way round by as much. Alike: all seeds of both lie within {ACCURACY.alike:.0%}; contradicted "
    f"if the means differ by more than {ACCURACY.apart:.0%}. Anything else is open. Where there is a single seed, "
    f"{ACCURACY.single:.0%} are needed."
)


@dataclass(frozen=True)
class Claim:
    """`better` > `worse` on a task, or alike."""

    task: str
    better: str
    worse: str
    alike: bool = False

    def __str__(self) -> str:
        return f"{self.task}: {self.better} {'=' if self.alike else '>'} {self.worse}"

    def grade(self, scores: Scores) -> Grade:
        """By `RULE`."""
        one, other = (scores.get((self.task, name), ()) for name in (self.better, self.worse))
        return (alike if self.alike else better)(one, other, ACCURACY)


_SPARSE = ("local:8", "first-order", "order:8", "exponential", "exponential+cache", "quadratic", "quadratic+cache")

CLAIMS: tuple[Claim, ...] = (
    Claim("copy", "attention", "dense", alike=True),
    Claim("copy", "dense", "quadratic"),
    Claim("copy", "quadratic", "exponential"),
    Claim("copy", "exponential", "exponential+cache"),
    Claim("copy", "quadratic", "quadratic+cache"),
    Claim("copy", "quadratic+cache", "exponential+cache"),
    Claim("copy", "exponential+cache", "order:8"),
    Claim("copy", "order:8", "first-order"),
    Claim("copy", "first-order", "local:8"),
    Claim("recall", "attention", "dense", alike=True),
    *(Claim("recall", "dense", name) for name in _SPARSE),
    Claim("recall", "exponential+cache", "exponential"),
    Claim("recall", "quadratic+cache", "quadratic"),
    Claim("multihop", "dense", "attention"),
    *(Claim("multihop", "attention", name) for name in _SPARSE),
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
