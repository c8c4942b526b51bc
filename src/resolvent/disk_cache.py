"""Where compiled kernels and lists of fonts are kept between processes, also where nothing but a temporary folder can
be written: in a container, say, with a read-only package and no home.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

NOTICE = "resolvent: neither the package's folder nor the home folder can be written"
_NOTIFIED = "RESOLVENT_CACHE_NOTICE"  # in the environment, so that the processes a process starts do not repeat it
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit(cache=True)`, which raises an error where it finds no folder to write to.

    Then `temporary_folder` is used, or no cache if there is none; a line on standard error says so, once.
    """
    import numba

    def declare(function: Callable[..., Any]) -> Any:
        try:
            with _without_relative_home():
                compiled = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            folder = temporary_folder()
            _notify(folder)
            if folder is None:
                return numba.njit(**options)(function)
            with _numba_folder(folder):
                compiled = numba.njit(cache=True, **options)(function)
        return _survive_full_disk(compiled)

    return declare


@cache
def kernel_folder() -> Path | None:
    """Where machine code is kept: NUMBA_CACHE_DIR, or beside the package, in the home, or in `temporary_folder`."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"]).absolute() / "resolvent"
    home = _home()
    usual = os.environ.get("XDG_CACHE_HOME") or (home and home / ".cache")
    folders = [Path(__file__).with_name("kernels") / "__pycache__", *([Path(usual) / "resolvent"] if usual else [])]
    folder = next(filter(_can_be_made, folders), None)
    if folder is not None:
        return folder
    folder = temporary_folder()
    _notify(folder)
    return folder and folder / "kernels"


def quiet_environment() -> dict[str, str]:
    """For a process that has nothing to say about folders."""
    return os.environ | {_NOTIFIED: "given"}


def speaks() -> bool:
    """Whether this process says what it does: of the processes of torchrun, one."""
    return os.environ.get("RANK", "0") == "0"


@cache
def temporary_folder() -> Path | None:
    """A folder of this user alone, below the system's temporary folder; None if it cannot be had.

    Code is loaded from it, and its name can be guessed: so nobody else may own it, write to it, or replace it.
    """
    if not hasattr(os, "geteuid"):  # Windows, where homes can be written
        return None
    try:
        parent = Path(tempfile.gettempdir())
        folder = parent / f"resolvent-{os.geteuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        own, above = folder.lstat(), parent.stat()
        private = stat.S_ISDIR(own.st_mode) and own.st_uid == os.geteuid() and not own.st_mode & _OTHERS
        replaceable = above.st_mode & _OTHERS_WRITE and not above.st_mode & stat.S_ISVTX
        if not private or replaceable or above.st_uid not in (0, os.geteuid()):
            return None
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def use_matplotlib_folder() -> None:
    """Before matplotlib is imported: name a folder for its list of fonts, if it would find none that can be written."""
    home = _home()
    folders = [os.environ.get(name) or (home and home / usual) for name, usual in _MATPLOTLIB_FOLDERS.items()]
    usable = all(folder and _can_be_made(Path(folder) / "matplotlib") for folder in folders)
    folder = None if usable or "MPLCONFIGDIR" in os.environ else temporary_folder()
    if folder is not None:
        os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")


_MATPLOTLIB_FOLDERS = {"XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache"}


def _home() -> Path | None:
    """None without HOME, for a user that the system does not know, and if HOME depends on where one is."""
    try:
        home = Path("~").expanduser()
    except RuntimeError:
        return None
    return home if home.is_absolute() else None


def _can_be_made(folder: Path) -> bool:
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except PermissionError:  # somebody else's home
        return False


@contextmanager
def _without_relative_home() -> Iterator[None]:
    """Where there is no home, Numba would make a folder named `~` right here."""
    if "XDG_CACHE_HOME" in os.environ or _home() is not None:
        yield
        return
    os.environ["XDG_CACHE_HOME"] = os.devnull
    try:
        yield
    finally:
        del os.environ["XDG_CACHE_HOME"]


@contextmanager
def _numba_folder(folder: Path) -> Iterator[None]:
    """For what is declared here: a function keeps the folder that it was declared with, and others keep theirs."""
    import numba

    config: Any = numba.config

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _survive_full_disk(compiled: Any) -> Any:
    """What is compiled works whether or not it can be saved."""
    if not hasattr(compiled, "_cache"):  # NUMBA_DISABLE_JIT leaves functions as they are
        return compiled
    save = compiled._cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    compiled._cache.save_overload = save_if_possible
    return compiled


def _notify(folder: Path | None) -> None:
    if _NOTIFIED in os.environ or not speaks():
        return
    os.environ[_NOTIFIED] = "given"
    kept = "are compiled again by every process" if folder is None else f"are kept in {folder}"
    print(
        f"{NOTICE}, so compiled kernels {kept}; to choose a folder, set NUMBA_CACHE_DIR.",
        file=sys.stderr,
    )
