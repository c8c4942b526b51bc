"""Which exceptions say that something is wrong with an input, and which that something is wrong with its reader."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import resolvent

_PACKAGE = str(Path(resolvent.__file__).parent)
_RAISE = dis.opmap["RAISE_VARARGS"]


@dataclass
class Result:
    """Whether the input was refused."""

    refused: bool = False


@contextmanager
def permitted(*kinds: type[Exception]) -> Iterator[Result]:
    """A block that may end in one of these, if it is the package that raises it in words of its own.

    ValueError covers much that Python raises by itself: int("x"), a NUL in a path, text that is not UTF-8. What counts
    is where it comes from: a `raise` statement in the package, not a failure of something that it called. That a file
    is missing the system says well enough.
    """
    result = Result()
    try:
        yield result
    except kinds as error:
        if not isinstance(error, FileNotFoundError) and not _is_own(error):
            raise
        result.refused = True


def _is_own(error: Exception) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and _raised_by_package(last)


def _raised_by_package(frame: TracebackType) -> bool:
    code = frame.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[frame.tb_lasti] == _RAISE
