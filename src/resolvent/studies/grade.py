"""How claims are graded from the seeds of runs: by one rule for all studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Grade = Literal["supported", "contradicted", "circumvented", "open", "not run"]


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
    return "contradicted" if mean(other) - mean(one) > scale.apart else "open"


def alike(one: Sequence[float], other: Sequence[float], scale: Scale) -> Grade:
    """All seeds of both close together, or their means apart."""
    if not one or not other:
        return "not run"
    if max(*one, *other) - min(*one, *other) <= scale.alike:
        return "supported"
    return "contradicted" if abs(mean(one) - mean(other)) > scale.apart else "open"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
