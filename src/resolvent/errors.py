"""Errors that the command line reports in one line, and the wording that messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import TypeGuard

_SHOWN = 60  # characters of a value in a message


class PatternError(ValueError):
    """A pattern, or a question about one, that makes no sense. The message says what was expected."""


class SettingError(ValueError):
    """A setting, an option or a name that is not understood. The message says what was expected."""


class RunError(RuntimeError):
    """A run that cannot continue. The message says why, and what to do."""


def closest(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no choice is near, nor begins so."""
    known = list(choices)
    matches = difflib.get_close_matches(word, known, n=1) or [each for each in known if word and each.startswith(word)]
    return f" Did you mean '{matches[0]}'?" if matches else ""


def shortened(value: object) -> str:
    """A value in a message, whatever its size."""
    if isinstance(value, dict | list | tuple) and len(value) > _SHOWN:
        return f"a {type(value).__name__} of {len(value):,} entries"
    text = repr(value[: 2 * _SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def at_most(value: object, most: int) -> str:
    """`, at most …` for a message, if that is what is wrong with a value."""
    return f", at most {most:,}" if is_integer(value) and value > most else ""


def is_integer(value: object) -> TypeGuard[int]:
    """True for Python and NumPy integers, not for bools, floats and arrays."""
    return isinstance(value, Integral) and not isinstance(value, bool)
