"""Atomic file writes that survive a kill at any moment, folder locks, and a clear error when the disk is full."""

from __future__ import annotations

import difflib
import errno
import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_DISK_MESSAGES = tuple(os.strerror(code) for code in _FULL_DISK)
_GLANCE = 0.05  # seconds
_LOCK = ".lock"
_ACTIVE: set[Path] = set()  # temporary files that this process is writing now


class DiskFullError(OSError):
    """The disk, or a quota, was full. Files written earlier are kept."""


class ReadOnlyError(OSError):
    """A folder that cannot be written."""

    def __str__(self) -> str:
        return f"{self.strerror}."


class BusyError(ValueError):
    """Another process is working in a folder."""


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk into `DiskFullError`, with the path and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError):
            full = error.errno in _FULL_DISK
        else:
            full = any(message in str(error) for message in _FULL_DISK_MESSAGES)
        if full:
            raise DiskFullError(
                f"no space left to write {path} ({error}): free some space, then rerun the same command to resume."
            ) from error
        if isinstance(error, SafetensorError):
            raise OSError(f"{path} could not be written: {error}") from error
        raise


@contextmanager
def atomic_write(path: Path, *, fixed_name: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it is flushed to disk and replaces `path`.

    If anything fails, `path` is unchanged and the temporary file is removed. A temporary file left behind by a killed
    process is removed by the next call. Whatever library writes to it, others may read the file as far as the umask
    allows: safetensors would keep it to the user alone.

    Args:
        path: The file to create or replace. Missing parent folders are created.
        fixed_name: Use the same temporary name on every call. Only for files that no other process can be writing.
    """
    name = f".{path.name}.new" if fixed_name else f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    temporary = path.with_name(name)
    with explain_full_disk(path):
        _remove_leftovers(path)
        _ACTIVE.add(temporary)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
            _ACTIVE.discard(temporary)
    fsync_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.????????"):
        pid = leftover.name.split(".")[-2]
        if pid.isdecimal() and leftover not in _ACTIVE and not _is_other_process(int(pid)):
            leftover.unlink(missing_ok=True)


def _is_other_process(pid: int) -> bool:
    """Whether another process with this id is running.

    False for this process, which tracks its own files in `_ACTIVE`: process ids are reused, in containers above all, so
    a file with our id may be a leftover of an earlier process.
    """
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_writable(folder: Path) -> None:
    """Raise an error at once, not after the hours that lead to the first write, if a folder cannot be written.

    Missing folders are created.

    Raises:
        ReadOnlyError: It cannot be written.
    """
    try:
        with explain_full_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise ReadOnlyError(
            error.errno, f"{folder} cannot be written ({error.strerror}): choose another --out, or make it writable"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, on systems with file locks. The lock ends with the process.

    It is that of a file in the folder, open for writing: network file systems lock such files on all machines, but
    folders on each by itself.

    Raises:
        BusyError: Another process holds the lock.
    """
    if find_spec("fcntl") is None:  # Windows
        yield
        return
    inside = os.open(folder, os.O_RDONLY)  # the folder may be renamed while it is locked
    try:
        descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o666, dir_fd=inside)
        try:
            try:
                _take(descriptor)
                removed = not os.path.samestat(os.fstat(descriptor), os.stat(_LOCK, dir_fd=inside))
            except (BlockingIOError, FileNotFoundError) as error:
                raise _busy(folder) from error
            if removed:  # by a process that held the lock until now; others lock the new file
                raise _busy(folder)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.unlink(_LOCK, dir_fd=inside)
        finally:
            os.close(descriptor)
    finally:
        os.close(inside)


def _take(descriptor: int) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_GLANCE)  # `is_locked` holds it for a moment, too
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _busy(folder: Path) -> BusyError:
    return BusyError(f"another process is working in {folder}: wait for it, or choose another --out.")


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder, on systems with file locks."""
    try:
        import fcntl

        descriptor = os.open(folder / _LOCK, os.O_RDONLY)
    except (ImportError, FileNotFoundError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def closest_path(path: Path) -> str:
    """` Did you mean 'x'?` for a path that does not exist: a name like it beside it, or in the folder `runs`."""
    parent = next(folder for folder in (path.parent, *path.parents) if folder.is_dir())
    name, *rest = path.relative_to(parent).parts
    beside: dict[str, str] = {}
    for folder in (parent, Path("runs")) if len(path.parts) == 1 else (parent,):
        with suppress(OSError):  # missing, or not readable
            beside |= {str(folder / other.name): other.name for other in folder.iterdir()}
    matches = difflib.get_close_matches(name, beside.values(), n=1)
    if not matches:
        return ""
    nearest = next(Path(full) for full, other in beside.items() if other == matches[0])
    return f" Did you mean '{nearest.joinpath(*rest) if nearest.joinpath(*rest).exists() else nearest}'?"


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, on systems that support it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
