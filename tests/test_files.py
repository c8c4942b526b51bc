"""Atomic writes: a file is replaced completely or not at all. Locks of folders."""

import errno
import fcntl
import os
from pathlib import Path
from unittest.mock import patch

import pytest
import safetensors.torch
import torch

from resolvent.files import BusyError, DiskFullError, atomic_write, locked, write_text
from tests.processes import run


def test_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "first")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as temporary:
        temporary.write_text("second, not encodable: \ud800", encoding="utf-8")
    assert path.read_text() == "first"
    write_text(path, "third")
    assert path.read_text() == "third"
    assert list(path.parent.iterdir()) == [path]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "a[1].txt"
    code = (
        "import os, signal, sys; from pathlib import Path; from resolvent.files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run("-c", code, str(path))
    [leftover] = tmp_path.iterdir()
    assert leftover.name.startswith(".a[1].txt.")
    other = tmp_path / f".a[1].txt.{os.getppid()}.01234567"
    other.write_text("of a running process")
    (tmp_path / f".a[1].txt.{os.getpid()}.01234567").write_text("of an earlier process with our id")
    with atomic_write(path) as first:
        first.write_text("being written")
        write_text(path, "complete")
    assert path.read_text() == "being written"
    assert set(tmp_path.iterdir()) == {path, other}


def test_full_disk_is_explained(tmp_path: Path) -> None:
    with (
        pytest.raises(
            DiskFullError, match=r"no space left to write .*a.txt.*free some space, then rerun the same command"
        ),
        atomic_write(tmp_path / "a.txt"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="Permission") as other, atomic_write(tmp_path / "a.txt"):
        raise OSError(errno.EACCES, "Permission denied")
    assert not isinstance(other.value, DiskFullError)
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_a_full_disk(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: the safetensors error becomes a DiskFullError."""
    code = (
        "import resource, sys, torch; from pathlib import Path; from resolvent.files import atomic_write\n"
        "from safetensors.torch import save_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with atomic_write(Path(sys.argv[1])) as temporary:\n"
        "    save_file({'x': torch.zeros(10_000)}, temporary)"
    )
    done = run("-c", code, str(tmp_path / "x.safetensors"))
    assert list(tmp_path.iterdir()) == []
    assert "DiskFullError: no space left to write" in done.stderr


def test_others_may_read_what_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "tensors") as temporary:
            safetensors.torch.save_file({"a": torch.ones(3)}, temporary)
        write_text(tmp_path / "text", "text")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("tensors", "text")] == [0o640, 0o640]


def test_a_lock_excludes_others_and_leaves_nothing(tmp_path: Path) -> None:
    """Also if the folder is renamed meanwhile, as a corpus is, and after a kill that left the file."""
    folder, renamed = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    (folder / ".lock").touch()
    with locked(folder):
        with pytest.raises(BusyError, match="another process is working in"), locked(folder):
            pass
        folder.rename(renamed)
        with pytest.raises(BusyError, match="another process is working in"), locked(renamed):
            pass
    assert not list(renamed.iterdir())
    with locked(renamed):
        pass


def test_a_lock_is_not_taken_on_a_file_that_was_removed(tmp_path: Path) -> None:
    """Its holder removes it between the moments that another process opens and locks it; a third locks a new one."""
    flock = fcntl.flock

    def after_removal(descriptor: int, operation: int) -> None:
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
        flock(descriptor, operation)

    with patch.object(fcntl, "flock", after_removal), pytest.raises(BusyError), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
