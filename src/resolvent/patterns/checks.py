"""Checks for lengths and positions passed by callers."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError, is_integer

LARGEST_POSITION = 2**62
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_LENGTH = re.compile(r"([0-9][0-9_,]{0,24})\s*([kmg]?)i?", re.IGNORECASE)


def require_length(n: int | str, most: int = LARGEST_POSITION) -> int:
    """Check a sequence length and return it as an integer.

    Args:
        n: An integer ≥ 1, or a string such as `"128k"` (131,072) or `"1M"` (1,048,576).
        most: The largest length allowed.

    >>> require_length("128k"), require_length(1000)
    (131072, 1000)
    """
    value = _parse(n) if isinstance(n, str) else n
    if not is_integer(value) or value < 1:
        raise PatternError(f"n is a number of tokens: expected an integer ≥ 1 or a string such as '128k', got {n!r}.")
    if value > most:
        raise PatternError(f"n is too long for this: expected at most {most:,} tokens, got {value:,}.")
    return int(value)


def _parse(text: str) -> int:
    """Parse a length; k, M and G are powers of 1,024. Returns 0, which is not a length, if that fails."""
    match = _LENGTH.fullmatch(text.strip())
    return int(re.sub("[_,]", "", match[1])) * _UNITS[match[2].lower()] if match else 0


def require_position(i: int, what: str = "i") -> int:
    """Check a 0-based position and return it as an integer."""
    if not is_integer(i) or i < 0:
        raise PatternError(f"{what} is a 0-based position: expected an integer ≥ 0, got {i!r}.")
    if i > LARGEST_POSITION:
        raise PatternError(f"{what} is beyond any sequence: expected at most 2**62, got {i}.")
    return int(i)


def require_positions(values: npt.ArrayLike, what: str) -> npt.NDArray[np.int64]:
    """Convert positions to an int64 array; anything but integers raises an error instead of being rounded."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise PatternError(f"{what} are 0-based positions: expected integers, got an array of {array.dtype}.")
    return array.astype(np.int64)
