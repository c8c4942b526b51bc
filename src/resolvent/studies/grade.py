"""The seeds of runs, and how claims are graded from them: by one rule for all studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

from resolvent.errors import SettingError

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


class Seeded(Protocol):
    """A run of a seed, and the file that its record was read from."""

    @property
    def seed(self) -> int: ...
    @property
    def source(self) -> str: ...


Key = TypeVar("Key", bound=tuple[object, ...])
Run = TypeVar("Run", bound=Seeded)


def by_seed(runs: Iterable[Run], key_of: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """The runs of each key, by seed; keys in the order of the runs.

    A seed that is there twice raises an error: it would count twice.
    """
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key_of(run), []).append(run)
    for key, own in groups.items():
        own.sort(key=lambda run: run.seed)
        for one, other in pairwise(own):
            if one.seed == other.seed:
                name = " · ".join(str(part) for part in key if part and type(part) is not tuple)
                first, second = (run.source or "a run of this study" for run in (one, other))
                raise SettingError(
                    f"expected each seed of {name} once, got seed {one.seed} twice, in {first} and in {second}: leave "
                    "one of the records out."
                )
    return groups
