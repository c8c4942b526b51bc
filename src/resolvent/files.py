"""Files that are whole or not there, whatever is killed when; locks; what is said when the disk is full."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAID = tuple(os.strerror(number) for number in _FULL)
_WRITING: set[Path] = set()  # by this process, now


class DiskFullError(OSError):
    """There was no room for a file. What was written before is kept."""


class BusyError(ValueError):
    """Another process is at work in a folder."""


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Say it plainly when there is no room."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = error.errno in _FULL if isinstance(error, OSError) else any(word in str(error) for word in _SAID)
        if full:
            raise DiskFullError(
                f"no room to write {path} ({error}): free some space and run the same again: it goes on."
            ) from error
        if isinstance(error, SafetensorError):
            raise OSError(f"{path} could not be written: {error}") from error
        raise


@contextmanager
def whole(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """A name beside `path` to write to; what is there in the end is put on disk and takes the name `path`.

    If anything fails, `path` stays as it was, and nothing is left beside it. What a kill leaves is removed the next
    time. If no other process can write this file now, `alone` gives the same name each time.
    """
    beside = path.with_name(f".{path.name}.new" if alone else f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with room_for(path):
        _remove_left_overs(path)
        _WRITING.add(beside)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
            _WRITING.discard(beside)
    settle(path.parent)


def _remove_left_overs(path: Path) -> None:
    """What processes that are no more have left beside a file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.????????"):
        number = left.name.split(".")[-2]
        if number.isdecimal() and left not in _WRITING and not _is_alive(int(number)):
            left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Another process than this one, which knows what it writes: numbers come again, in containers above all."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is someone else's
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """All of the text, or the file as it was."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


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
            raise BusyError(f"another process is at work in {folder}: wait for it, or choose another --out.") from error
        yield
    finally:
        os.close(descriptor)


def settle(folder: Path) -> None:
    """Names in a folder reach the disk, where the system can be asked for that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
