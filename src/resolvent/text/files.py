"""File helpers of the text package: hashes, blocks, JSON, and the cache folder for downloads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from resolvent.files import atomic_write

BLOCK = 2**20


class TextError(ValueError):
    """A text, tokenizer or corpus that cannot be used: the message says what was expected."""


def append(descriptor: int, data: bytes) -> None:
    """Write all of the data: `os.write` may write less than it was given."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def write_json(path: Path, content: Mapping[str, object], mtime: float | None = None) -> None:
    """Write a JSON file atomically, optionally with this modification time."""
    with atomic_write(path, fixed_name=True) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            append(descriptor, (json.dumps(content, indent=1) + "\n").encode())
        finally:
            os.close(descriptor)
        if mtime is not None:
            os.utime(temporary, (mtime, mtime))


def blocks(path: Path) -> Iterator[bytes]:
    """The content of a file in blocks of at most `BLOCK` bytes."""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()


def cache_folder() -> Path:
    """The folder for downloaded tokenizers and corpora: `resolvent` in XDG_CACHE_HOME, or in ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "resolvent"
