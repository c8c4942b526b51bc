"""The interface of patterns: which positions a token reads, for how long they are read, and where they are cached.

Positions are 0-based everywhere in the public interface. The mathematics of cache-efficient patterns is 1-based
(docs/theory.md); only `cache_efficient.py` and `lifetimes.py` convert between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns.checks import require_length
from resolvent.patterns.strides import Integers, Value

if TYPE_CHECKING:
    from resolvent.patterns.stage import Stage

Normalize = Literal["gate", "joint"]
Direct = Literal["all", "diagonal"]
Part = Literal["reads", "a", "b"]
Mask = npt.NDArray[np.bool_]

_LARGEST_MASK = 32_768


@dataclass(frozen=True)
class Needs:
    """The tensors of a call, and those that a decoder caches.

    a      qa and ka: direct reads are weighted by scores
    b      qb and kb: feedback is weighted by scores; a softmax over a single source is 1 whatever its score
    gate   the share of feedback in each row
    cached kept for later tokens: a subset of "values", "keys_a", "outputs", "keys_b" and "logs"
    """

    a: bool
    b: bool
    gate: bool
    cached: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The required arguments besides x."""
        used = {"qa": self.a, "ka": self.a, "qb": self.b, "kb": self.b, "gate": self.gate}
        return tuple(name for name, needed in used.items() if needed)

    @classmethod
    def of_all(cls, stages: Sequence[Needs]) -> Needs:
        """What a call needs that runs through all of these."""
        cached = dict.fromkeys(name for each in stages for name in each.cached)
        a, b, gate = (any(getattr(each, name) for each in stages) for name in ("a", "b", "gate"))
        return cls(a, b, gate, tuple(cached))


class Pattern(Value, ABC):
    """Which past positions each token reads, without coefficients. Frozen and hashable; made by `resolvent.pattern`.

    Most are a single `Stage`: A and B read the same positions. A `Pair` has one for A and one for B.
    Lengths `n` are integers, or strings such as `"128k"` or `"1M"`.

    Attributes:
        direct: "all" if A has entries on the readable positions and the diagonal, "diagonal" if on the diagonal only.
        recurrent: Whether B has entries on the readable positions; otherwise B = 0.

    >>> from resolvent.patterns import pattern
    >>> print(pattern("exponential").draw(6))
    exponential, 6 tokens: ■ A and B, □ A only, · not read
    □
    ■ □
    ■ ■ □
    · ■ ■ □
    ■ · ■ ■ □
    · ■ · ■ ■ □
    """

    direct: Direct
    recurrent: bool

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The patterns that the operator runs one after another: itself, or A's and then B's."""

    @abstractmethod
    def sources(self, i: int) -> Integers:
        """The past positions that token i reads, ascending and distinct, shape (reads(i),).

        >>> from resolvent.patterns import pattern
        >>> pattern("exponential+cache").sources(20)
        array([ 7, 15, 17, 18, 19])
        """

    @abstractmethod
    def allows(self, i: npt.ArrayLike, j: npt.ArrayLike) -> Mask:
        """Whether token i reads position j, elementwise over broadcastable arrays of positions.

        >>> from resolvent.patterns import pattern
        >>> pattern("exponential").allows(20, [4, 5, 19])
        array([ True, False,  True])
        """

    @abstractmethod
    def lives(self, n: int | str) -> Integers:
        """For all j < n the distance to the last token that reads j, shape (n,).

        Capped at n, and exact as far as readers below n are concerned.
        """

    @abstractmethod
    def with_diagonal_a(self) -> Pattern:
        """The same pattern with A on the diagonal only."""

    @property
    @abstractmethod
    def spelling(self) -> str:
        """The text from which `resolvent.pattern` restores it: what files hold."""

    @property
    def label(self) -> str:
        """What tables and messages show, and `str`: its spelling, unless that is too long to read."""
        return self.spelling

    @property
    def limit(self) -> int | None:
        """The longest sequence that it is defined for; None if there is none."""
        return None

    def require_within(self, n: int) -> None:
        """Raise an error if the pattern ends before n tokens."""
        if self.limit is not None and n > self.limit:
            raise PatternError(f"{self} is defined for {self.limit:,} tokens: expected at most as many, got {n:,}.")

    @property
    def has_spelling(self) -> bool:
        """Whether `pattern(self.spelling)` restores it; not so if a Python function is part of it."""
        return True

    @property
    def is_dense(self) -> bool:
        """Whether every token reads every earlier one, in A and B alike."""
        return False

    @property
    def is_first_order(self) -> bool:
        """Whether each token reads the previous output only."""
        return False

    def is_shifted(self, n: int) -> bool:  # noqa: ARG002
        """Whether the first n tokens all read at the same distances, which `offsets` then lists."""
        return False

    def offsets(self, n: int | str) -> Integers:  # noqa: ARG002
        """The strides f(k) < n that generate the pattern (before rounding, for cache-efficient patterns).

        >>> from resolvent.patterns import pattern
        >>> pattern("quadratic").offsets(20)
        array([ 1,  2,  5, 10, 17])
        """
        raise PatternError(f"{self} is not made of strides: expected a pattern such as 'quadratic'. Use sources(i).")

    def slots(self, n: int | str) -> int:
        """The number of cache slots needed to decode n tokens: of all stages.

        >>> from resolvent.patterns import pattern
        >>> pattern("exponential").slots("4k"), pattern("exponential+cache").slots("4k")
        (4095, 12)
        """
        return sum(stage.slots(n) for stage in self.stages)

    def reads(self, i: int) -> int:
        """The number of past positions that token i reads: `len(sources(i))`."""
        return len(self.sources(i))

    def needs(self, normalize: Normalize = "gate") -> Needs:
        """The tensors that an operator call with these options needs."""
        return Needs.of_all([stage.needs(normalize) for stage in self.stages])

    def occupancy(self, n: int | str) -> Integers:
        """The number of positions held when token i is decoded, for each i < n, shape (n,)."""
        return live_counts(self.lives(n))

    def total_reads(self, n: int | str) -> int:
        """The sum of `reads(i)` over i < n."""
        return sum(self.reads(i) for i in range(require_length(n)))

    def widest_row(self, n: int | str) -> int:
        """The largest number of positions that one of the first n tokens reads."""
        return max(self.reads(i) for i in range(require_length(n)))

    def nonzeros(self, n: int | str) -> tuple[int, int]:
        """The number of non-zeros of A (diagonal included) and of B on n tokens."""
        n = require_length(n)
        a = sum(stage.total_reads(n) for stage in self.stages if stage.direct == "all")
        return n + a, sum(stage.total_reads(n) for stage in self.stages if stage.recurrent)

    def mask(self, n: int | str, part: Part = "reads") -> Mask:
        """The pattern as a boolean matrix.

        Args:
            n: Sequence length, at most 32,768.
            part: "reads" for the positions read, "a" or "b" for the non-zeros of A or B.

        Returns:
            Shape (n, n); entry [i, j] is True if token i reads position j.

        >>> from resolvent.patterns import pattern
        >>> pattern("order:2").mask(4).astype(int)
        array([[0, 0, 0, 0],
               [1, 0, 0, 0],
               [1, 1, 0, 0],
               [0, 1, 1, 0]])
        """
        n = require_length(n)
        self.require_within(n)
        if n > _LARGEST_MASK:
            raise PatternError(
                f"mask(n) is an n × n array: expected n ≤ {_LARGEST_MASK:,}, got {n:,}. "
                f"Use sources(i) for one row, or allows(i, j) for single entries."
            )
        if part not in ("reads", "a", "b"):
            raise PatternError(f"expected part 'reads', 'a' or 'b', got {part!r}.")
        mask = np.zeros((n, n), dtype=np.bool_)
        for stage in self.stages:
            if part == "reads" or (stage.direct == "all" if part == "a" else stage.recurrent):
                for i in range(n):
                    mask[i, stage.sources(i)] = True
        if part == "a":
            np.fill_diagonal(mask, True)
        return mask

    def draw(self, n: int | str = 16) -> str:
        """Draw the first n rows as text: rows are tokens, columns the positions they may read."""
        n = require_length(n)
        both, direct, feedback, nothing = "■", "□", "◆", "·"
        a, b = self.mask(n, "a"), self.mask(n, "b")
        cells = np.where(a & b, both, np.where(a, direct, np.where(b, feedback, nothing)))
        cells[np.triu_indices(n, 1)] = " "
        legend = [(both, "A and B"), (direct, "A only"), (feedback, "B only"), (nothing, "not read")]
        shown = ", ".join(f"{mark} {meaning}" for mark, meaning in legend if mark in cells)
        return "\n".join([f"{self}, {n} tokens: {shown}", *(" ".join(row).rstrip() for row in cells)])

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"pattern('{self}')"


def live_counts(lives: Integers) -> Integers:
    """The number of live positions at each token, if position j is read by the `lives[j]` tokens after it."""
    n = len(lives)
    after = np.minimum(np.arange(1, n + 1) + lives, n)  # the first token that does not read it
    counts: Integers = np.arange(n) - np.cumsum(np.bincount(after, minlength=n + 1))[:n]
    return counts


def modifiers(direct: Direct, recurrent: bool) -> str:
    """How a spelling says that A or B has fewer entries than the pattern allows."""
    return ("+diagonal" if direct == "diagonal" else "") + ("" if recurrent else "+attention")
