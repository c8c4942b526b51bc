"""Docstrings as the reference shows them: examples as code, and columns of names as lists of attributes."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*(?:\n\s*\n>>> .*(?:\n(?!\s*$).*)*)*", flags=re.MULTILINE)
_COLUMN = re.compile(r"^(\w+) {2,}(\S.*)((?:\n {5,}\S.*)*)", flags=re.MULTILINE)


class Readable(Extension):
    """Applied to every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """`>>>` in a fence, and `name  meaning` as an item."""
    text = _COLUMN.sub(lambda match: f"- `{match[1]}`: {' '.join((match[2] + match[3]).split())}", text)
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
