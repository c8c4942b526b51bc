"""Random patterns, and who reads whom in them by brute force: from their definitions, not from the package."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import resolvent as rv
from fuzz.case import Case
from resolvent.patterns import FAMILIES, Stage
from tests.oracles import (
    STRIDES,
    binomial_rows,
    cache_efficient_sets,
    fenwick_rows,
    strides_below,
    translation_invariant_sets,
)

Sets = list[set[int]]
MOST_TOKENS = 1200  # of a table: no case is longer
_GENERATED = {"exponential": lambda k: 2**k, "quadratic": lambda k: k * k + 1}


@dataclass(frozen=True)
class DrawnPattern:
    """`given` is what callers pass: a spelling, a `Pattern` or a function. `a(n)` and `b(n)` have the sources of each
    token in either matrix, if the pattern has any there.
    """

    given: rv.Pattern | str | Callable[[int], int]
    a: Callable[[int], Sets]
    b: Callable[[int], Sets]

    @property
    def pattern(self) -> rv.Pattern:
        return rv.pattern(self.given)

    def __str__(self) -> str:
        return str(self.pattern)


@dataclass(frozen=True)
class _DrawnStage:
    """`function` is what it may be instead of a spelling."""

    stage: Stage
    sets: Callable[[int], Sets]
    function: Callable[[int], int] | None = None


def draw_pattern(case: Case) -> DrawnPattern:
    """Any family with any modifiers, or two of them; families that this file does not know by their example."""
    drawn = _draw_stage(case)
    if case.chance(0.25):
        other = _draw_stage(case)
        if drawn.stage.direct == "all" or other.stage.recurrent:
            pair = rv.pair(drawn.stage, other.stage)
            # A pair can have a spelling although one side has none: it leaves out what it does not use of a side.
            spellable = drawn.stage.has_spelling and other.stage.has_spelling
            spelled = f"{drawn.stage.spelling}/{other.stage.spelling}" if spellable else pair
            return DrawnPattern(case.choose([pair, spelled]), drawn.sets, other.sets)
    given: rv.Pattern | str | Callable[[int], int] = drawn.stage
    if drawn.function is not None and drawn.stage == rv.pattern(drawn.function):
        given = case.choose([drawn.stage, drawn.function])
    elif drawn.stage.has_spelling:
        given = case.choose([drawn.stage, drawn.stage.spelling])
    return DrawnPattern(given, drawn.sets, drawn.sets)


def _draw_stage(case: Case) -> _DrawnStage:
    family = case.choose([*FAMILIES, "function", "stride", "offsets", "exponential", "quadratic", "explicit", "rows"])
    if family in ("explicit", "rows"):
        plain = _listed(case, bounded=family == "explicit")
    elif family == "binomial":
        size, lazy = case.choose([1, 2, 3, 5, 16]), case.chance(0.5)
        stage = _stage(f"binomial:{size}{',lazy' * lazy}")
        plain = _DrawnStage(stage, lambda n: _binomial_sets(size, n, lazy=lazy))
    elif family == "fenwick":
        plain = _DrawnStage(_stage(family), fenwick_rows)
    else:
        plain = _strided(case, family)
    stage = plain.stage
    if stage.recurrent and stage.direct == "all":
        direct, recurrent = case.choose([("all", True)] * 3 + [("diagonal", True), ("all", False)])
        stage = stage.modified(direct, recurrent)
    if stage == plain.stage:
        return plain
    return _DrawnStage(stage, plain.sets)


def _stage(spec: str | Callable[[int], int]) -> Stage:
    (stage,) = rv.pattern(spec).stages
    return stage


def _strided(case: Case, family: str) -> _DrawnStage:
    name, strides, function = _family(case, family)
    stage = _stage(name if function is None else function)
    if strides is None:
        return _DrawnStage(stage, lambda n: [set(stage.sources(i).tolist()) for i in range(n)])
    if case.chance(0.4):
        return _DrawnStage(stage.cache_efficient(), lambda n: cache_efficient_sets(strides(n), n))
    return _DrawnStage(stage, lambda n: translation_invariant_sets(strides(n), n), function)


def _listed(case: Case, *, bounded: bool) -> _DrawnStage:
    """Rows at random, many of them empty perhaps: as a table, or as a function without an end."""
    seed, most, empty = case.integer(0, 1 << 30), case.choose([1, 2, 5, 20]), case.choose([0.0, 0.1, 0.8])

    def row(i: int) -> set[int]:
        chance = random.Random(seed * 1_000_003 + i)
        if not i or chance.random() < empty:
            return set()
        return {chance.randrange(i) for _ in range(chance.randint(1, most))} | (
            {i - 1} if chance.random() < 0.3 else set()
        )

    (stage,) = rv.explicit(lambda i: list(row(i)), MOST_TOKENS if bounded else None).stages
    return _DrawnStage(stage, lambda n: [row(i) for i in range(n)])


def _binomial_sets(size: int, n: int, *, lazy: bool) -> Sets:
    """What is held; if lazy, also what is not written over yet: the token before takes the slot above the others."""
    held = [{i - 1} if i else set() for i in range(n)] if size == 1 else binomial_rows(size, n)
    if not lazy:
        return held
    slots: dict[int, int] = {}
    sets = []
    for i, row in enumerate(held):
        if i:
            slots[len(row) - 1] = i - 1
        sets.append(set(slots.values()))
    return sets


def _family(case: Case, family: str) -> tuple[str, Callable[[int], list[int]] | None, Callable[[int], int] | None]:
    """A spelling, its distances below n, and the function that it is instead of a spelling."""
    if family in ("attention", "dense"):
        return family, _up_to(None), None
    if family in ("local", "order"):
        size = case.choose([1, 2, 3, case.integer(1, 40), case.integer(1, 200)])
        return f"{family}:{size}", _up_to(size - 1 if family == "local" else size), None
    if family == "first-order":
        return family, _up_to(1), None
    if family in _GENERATED:
        return family, _below(_GENERATED[family]), None
    if family == "stride":
        text = case.choose(list(STRIDES))
        return f"stride:{text}", _below(STRIDES[text]), None
    if family == "function":
        function = case.choose(list(STRIDES.values()))
        return "", _below(function), function
    if family == "offsets":
        far = case.choose([8, 60, 300])
        listed = sorted(case.random.sample(range(1, far), case.integer(1, min(7, far - 1))))
        return "offsets:" + ",".join(map(str, listed)), lambda n: [f for f in listed if f < n], None
    return FAMILIES[family].sample, None, None


def _up_to(size: int | None) -> Callable[[int], list[int]]:
    return lambda n: list(range(1, n if size is None else min(size + 1, n)))


def _below(function: Callable[[int], int]) -> Callable[[int], list[int]]:
    return lambda n: strides_below(function, n)
