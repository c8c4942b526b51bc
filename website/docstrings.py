"""Docstrings as the reference shows them: examples as code, and columns of names as lists."""

from __future__ import annotations

import re

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*(?:\n\s*\n>>> .*(?:\n(?!\s*$).*)*)*", flags=re.MULTILINE)
_COLUMN = re.compile(r"^(\w+) {2,}(\S.*)((?:\n {5,}\S.*)*)", flags=re.MULTILINE)


def readable(text: str) -> str:
    """`>>>` in a fence, and `name  meaning` as an item."""
    text = _COLUMN.sub(lambda match: f"- `{match[1]}`: {' '.join((match[2] + match[3]).split())}", text)
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
