"""JSON that anybody may have written. All JSON files of this library are read here, up to a size.

`NaN` and `Infinity` are read: losses that are not finite are part of what runs leave. (So the parser is the standard
library's: faster ones refuse these words.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from resolvent.errors import SettingError, shortened

MOST_BYTES = 8 << 20


def parse(text: str | bytes, most_bytes: int = MOST_BYTES) -> object:
    """The value that a text of JSON spells. Anything else, or a longer text, raises an error."""
    if len(text) > most_bytes:
        raise SettingError(f"expected JSON of at most {most_bytes:,} bytes, got {len(text):,}.")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SettingError(f"expected JSON in UTF-8, got byte {text[error.start]:#x} at {error.start:,}.") from None
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise SettingError("expected JSON that is not nested so deep.") from None
    except ValueError as error:  # an integer of thousands of digits, too
        raise SettingError(f"expected JSON, got {shortened(text)} ({error}).") from None
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
