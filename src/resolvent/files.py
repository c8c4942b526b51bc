"""Files that are whole or not there, whatever is killed when and however full the disk is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what is there in the end is put on disk and takes the name `path`.

    If anything fails, `path` stays as it was, and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except SafetensorError as error:  # what it says of a disk that is full, or a folder that is not writable
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Put on disk which names a folder has."""
    with suppress(OSError):  # not every system syncs folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """All of the text, or the file as it was."""
    with whole(path) as beside:
        beside.write_text(text)
