"""One error type for everything that is wrong with a pattern, and the wording shared by its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PatternError(ValueError):
    """A pattern, or a question put to one, that makes no sense. The message says what was expected."""


def closest(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no choice is near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.4)
    return f" Did you mean '{found[0]}'?" if found else ""


def require_length(n: int, what: str = "n") -> int:
    """Sequence lengths are integers ≥ 1."""
    if not is_integer(n) or n < 1:
        raise PatternError(f"{what} is a number of tokens: expected an integer ≥ 1, got {n!r}.")
    return int(n)


def require_position(i: int, what: str = "i") -> int:
    """Positions are 0-based integers."""
    if not is_integer(i) or i < 0:
        raise PatternError(f"{what} is a 0-based position: expected an integer ≥ 0, got {i!r}.")
    return int(i)


def is_integer(value: object) -> bool:
    """True for Python and NumPy integers, not for bools and floats."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
