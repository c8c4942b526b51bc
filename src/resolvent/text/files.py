"""Files that are whole or not there, what is said when the disk is full, and the folder for what was fetched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLOCK = 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class TextError(ValueError):
    """A text, tokenizer or corpus that cannot be used: the message says what was expected."""


class DiskFullError(OSError):
    """There was no room for a file. What was written before is kept."""


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Say it plainly when there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFullError(
            f"no room to write {path} ({error.strerror}): free some space and run the same again: it goes on."
        ) from error


def append(descriptor: int, data: bytes) -> None:
    """All of it, or an error: what the system leaves over is written in the next round."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_json(path: Path, content: dict[str, Any], date: float | None = None) -> None:
    """Whole or not at all: beside its place first, then moved there. With a date, it is as if written then."""
    new = path.with_name(f".{path.name}.new")
    with room_for(path):
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                append(descriptor, (json.dumps(content, indent=1) + "\n").encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if date is not None:
                os.utime(new, (date, date))
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Names in a folder reach the disk, where the system can be asked for that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, where the system has such locks; they end with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TextError(f"another process is at work in {folder}: wait for it, or choose another --out.") from error
        yield
    finally:
        os.close(descriptor)
