"""Hashes and pieces of files, and the folder for what was fetched."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resolvent.files import whole

BLOCK = 2**20


class TextError(ValueError):
    """A text, tokenizer or corpus that cannot be used: the message says what was expected."""


def append(descriptor: int, data: bytes) -> None:
    """All of it, or an error: what the system leaves over is written in the next round."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_json(path: Path, content: dict[str, Any], date: float | None = None) -> None:
    """Whole or not at all. With a date, it is as if written then."""
    with whole(path, alone=True) as beside:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            append(descriptor, (json.dumps(content, indent=1) + "\n").encode())
        finally:
            os.close(descriptor)
        if date is not None:
            os.utime(beside, (date, date))


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def sha256_of(path: Path) -> str:
    found = hashlib.sha256()
    for block in blocks(path):
        found.update(block)
    return found.hexdigest()


def cache_folder() -> Path:
    """Where fetched tokenizers and texts are kept: `resolvent` in XDG_CACHE_HOME, or in ~/.cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "resolvent"
