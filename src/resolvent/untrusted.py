"""JSON that anybody may have written. All JSON files of this library are read here, within limits of size and depth.

A small file can claim much: what is read costs memory in proportion to its bytes, and nothing else does before it is
checked. `NaN` and `Infinity` are read: losses that are not finite are part of what runs leave. (So the parser is the
standard library's: faster ones refuse these words.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from resolvent.errors import SettingError, shortened

MOST_BYTES = 8 << 20
MOST_VALUES = 1_000_000  # at about 100 bytes each, once parsed; objects take twice that, and count twice
MOST_DEPTH = 32
# Without backtracking, and a string without an end runs to the end of the text: else each of its quotes would be tried
# as another beginning, which takes time in the square of the length.
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def parse(text: str | bytes, most_bytes: int = MOST_BYTES) -> object:
    """The value that a text of JSON spells. Anything else, and anything beyond the limits, raises an error."""
    if len(text) > most_bytes:
        raise SettingError(f"expected JSON of at most {most_bytes:,} bytes, got {len(text):,}.")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SettingError(f"expected JSON in UTF-8, got byte {text[error.start]:#x} at {error.start:,}.") from None
    values = _count(text)
    if values > MOST_VALUES:
        values = _count(_STRINGS.sub("", text))  # slower, and exact: texts have commas, too
    if values > MOST_VALUES:
        raise SettingError(f"expected JSON of at most {MOST_VALUES:,} values, got {values:,}.")
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise SettingError(_too_deep()) from None
    except ValueError as error:  # an integer of thousands of digits, too
        raise SettingError(f"expected JSON, got {shortened(text)} ({error}).") from None
    _check_depth(value)
    return value


def read(path: Path, most_bytes: int = MOST_BYTES) -> object:
    """The value in a file. A file beyond the limit is not read at all."""
    with open_file(path) as file:
        return parse(file.read(most_bytes + 1), most_bytes)


def read_lines(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1, with their ends: the last may have none. One at a time."""
    with open_file(path) as file:
        number = 0
        while line := file.readline(most_bytes + 1):
            number += 1
            yield number, line
            if len(line) > most_bytes:  # `parse` raises an error; what follows is no line
                return


def open_file(path: Path) -> BinaryIO:
    """A file, open for reading. A pipe is refused: to open it would wait for somebody who writes, perhaps forever."""
    if path.exists() and not path.is_file() and not path.is_dir():  # of a folder the system says it best
        raise SettingError(f"expected {path} to be a file, got a pipe, a socket or a device.")
    return path.open("rb")


def _count(text: str) -> int:
    """At least as many values as the text spells."""
    return sum(text.count(mark) for mark in ",[{{")


def _check_depth(value: object) -> None:
    """Level by level, without recursion: those who use the value may then recurse."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise SettingError(_too_deep())


def _too_deep() -> str:
    return f"expected JSON nested at most {MOST_DEPTH} deep, got more."
