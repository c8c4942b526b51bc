"""Files that are whole or not there."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from resolvent.files import DiskFullError, whole, write_text


def test_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "first")
    with pytest.raises(UnicodeEncodeError), whole(path) as beside:
        beside.write_text("second, and what no text can hold: \ud800", encoding="utf-8")
    assert path.read_text() == "first"
    write_text(path, "third")
    assert path.read_text() == "third"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_kill_leaves_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a[1].txt"
    code = (
        "import os, signal, sys; from pathlib import Path; from resolvent.files import whole\n"
        "with whole(Path(sys.argv[1])) as beside:\n"
        "    beside.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    [left] = tmp_path.iterdir()
    assert left.name.startswith(".a[1].txt.")
    other = tmp_path / f".a[1].txt.{os.getppid()}.01234567"
    other.write_text("of a process that is still at work")
    (tmp_path / f".a[1].txt.{os.getpid()}.01234567").write_text("of one that had this one's number")
    with whole(path) as first:
        first.write_text("being written")
        write_text(path, "whole")
    assert path.read_text() == "being written"
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFullError, match=r"no room to write .*a.txt.*free some space and run the same again"),
        whole(tmp_path / "a.txt"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="Permission") as other, whole(tmp_path / "a.txt"):
        raise OSError(errno.EACCES, "Permission denied")
    assert not isinstance(other.value, DiskFullError)
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: what safetensors says of it becomes an error of ours."""
    code = (
        "import resource, sys, torch; from pathlib import Path; from resolvent.files import whole\n"
        "from safetensors.torch import save_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with whole(Path(sys.argv[1])) as beside:\n"
        "    save_file({'x': torch.zeros(10_000)}, beside)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.safetensors")], capture_output=True, text=True)
    assert list(tmp_path.iterdir()) == []
    assert "DiskFullError: no room to write" in done.stderr


def test_tensors(tmp_path: Path) -> None:
    with whole(tmp_path / "x.safetensors") as beside:
        safetensors.torch.save_file({"x": torch.arange(3)}, beside)
    assert safetensors.torch.load_file(tmp_path / "x.safetensors")["x"].tolist() == [0, 1, 2]
