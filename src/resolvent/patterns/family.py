"""What a family of patterns is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resolvent.errors import PatternError, shortened
from resolvent.patterns.stage import Stage

_MOST_DIGITS = 100  # far more than any size has


@dataclass(frozen=True)
class Family:
    """A family is spelled `name`, or `name:argument` if it takes one; `make` builds a pattern from the argument.

    default  the argument if none is given; without one, it must be
    source   who published it, if it is not the paper's
    claim    what its authors claim of it
    """

    name: str
    meaning: str
    make: Callable[[str], Stage]
    argument: str = ""
    example: str = ""
    default: str = ""
    source: str = ""
    claim: str = ""

    @property
    def signature(self) -> str:
        if self.default:
            return f"{self.name}[:{self.argument}]"
        return f"{self.name}:{self.argument}" if self.argument else self.name

    @property
    def sample(self) -> str:
        """The spelling of an example pattern."""
        return f"{self.name}:{self.example}" if self.argument else self.name


def parse_size(name: str, argument: str) -> int:
    """An argument that is an integer ≥ 1."""
    if not re.fullmatch(r"\s*[0-9]+\s*", argument) or not (size := parse_integer(argument)):
        raise PatternError(
            f"{shortened(f'{name}:{argument}')} needs a size: expected an integer ≥ 1 as in '{name}:8', "
            f"got {shortened(argument)}."
        )
    return size


@dataclass(frozen=True)
class Number:
    """One of the integers in an argument, and its bounds: more than a million reads are not worth a name."""

    name: str
    least: int = 0
    most: int = 1 << 20


def parse_numbers(name: str, argument: str, numbers: Sequence[Number], required: int | None = None) -> tuple[int, ...]:
    """An argument that is a list of integers, such as `4,2,2`; the last ones may be missing if fewer are required."""
    given = [text.strip() for text in argument.split(",", len(numbers))]
    least = len(numbers) if required is None else required
    if least <= len(given) <= len(numbers) and all(re.fullmatch(r"[0-9]+", text) for text in given):
        values = tuple(map(parse_integer, given))
        if all(number.least <= value <= number.most for number, value in zip(numbers, values, strict=False)):
            return values
    expected = ", ".join(
        f"{number.least} ≤ {number.name} ≤ {number.most:,}" + (" (optional)" if index >= least else "")
        for index, number in enumerate(numbers)
    )
    form = "an integer" if len(numbers) == 1 else "integers separated by commas,"
    raise PatternError(f"'{name}:{argument[:40]}': expected {form} {expected}, got {argument[:40]!r}.")


def parse_integer(text: str) -> int:
    """The integer that these digits spell. Python's own limit of digits would raise an error that names no pattern."""
    if len(text) > _MOST_DIGITS:
        raise PatternError(
            f"{text[:24]}… is longer than any sequence: expected at most 2**62, got {len(text):,} digits."
        )
    return int(text)
