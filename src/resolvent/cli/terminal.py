"""Output on terminals whose encoding lacks the characters that tables and drawings are made of."""

from __future__ import annotations

import codecs
import io
import sys

_ASCII = {
    "■": "#", "□": "o", "◆": "*", "●": "*", "·": ".", "×": "x", "–": "-", "─": "-", "…": "...", "≤": "<=", "≥": ">=",
    "≲": "<~", "±": "+-", "∞": "inf", "→": "->", "√": "sqrt", "∛": "cbrt", "²": "^2", "µ": "u", "␣": "_",
}  # fmt: skip
_ESCAPED = range(0xDC80, 0xDD00)  # how Python holds bytes of file names that are not text


def replace_what_cannot_be_encoded() -> None:
    """From now on printing raises no error, whatever the encoding: characters that it lacks are spelled in ASCII."""
    codecs.register_error("resolvent", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not a test's, nor a notebook's
            stream.reconfigure(errors="resolvent")


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    if all(ord(character) in _ESCAPED for character in characters):
        return bytes(ord(character) - 0xDC00 for character in characters), error.end
    return "".join(_ASCII.get(character, "?") for character in characters), error.end
