"""Error types that the command line knows without torch, and the wording shared by messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral

import numpy as np
import numpy.typing as npt


class PatternError(ValueError):
    """A pattern, or a question put to one, that makes no sense. The message says what was expected."""


class RunError(RuntimeError):
    """A run that could not go on. The message says why, and what to do."""


def closest(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no choice is near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.4)
    return f" Did you mean '{found[0]}'?" if found else ""


LARGEST_POSITION = 2**62


def require_length(n: int, most: int = LARGEST_POSITION) -> int:
    """Sequence lengths are integers ≥ 1."""
    if not is_integer(n) or n < 1:
        raise PatternError(f"n is a number of tokens: expected an integer ≥ 1, got {n!r}.")
    if n > most:
        raise PatternError(f"n is too long for this: expected at most {most:,} tokens, got {n:,}.")
    return int(n)


def require_position(i: int, what: str = "i") -> int:
    """Positions are 0-based integers."""
    if not is_integer(i) or i < 0:
        raise PatternError(f"{what} is a 0-based position: expected an integer ≥ 0, got {i!r}.")
    if i > LARGEST_POSITION:
        raise PatternError(f"{what} is beyond any sequence: expected at most 2**62, got {i}.")
    return int(i)


def is_integer(value: object) -> bool:
    """True for Python and NumPy integers, not for bools, floats and arrays."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_positions(values: npt.ArrayLike, what: str) -> npt.NDArray[np.int64]:
    """Positions as an array; anything but integers is refused rather than rounded."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise PatternError(f"{what} are 0-based positions: expected integers, got an array of {array.dtype}.")
    return array.astype(np.int64)
