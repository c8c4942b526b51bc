"""Compiled kernels and lists of fonts where neither the package nor the home folder can be written."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from resolvent import disk_cache
from resolvent.kernels.process import COMPILING
from tests.confined import copy_of_package, make_read_only, make_writable, run

NOTICE = "to choose a folder, set NUMBA_CACHE_DIR."
COMPARE = ("-m", "resolvent", "analyze", "dense", "exponential", "--n", "32")
COMPILE = ("-c", "import numpy as np; from resolvent.analysis import kernels; kernels.next_longer(np.array([1]))")
TRAIN = ("-m", "resolvent", "train", "copy", "--pattern", "first-order", "--rule", "mamba1", "--preset", "smoke",
         *(word for change in ("train.steps=1", "train.batch=2", "train.eval_batches=1", "model.dim=16")
           for word in ("--set", change)))  # fmt: skip


@pytest.fixture
def container(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a read-only package, a home that cannot be written, and a temporary folder."""
    package, home, temporary = (tmp_path / name for name in ("package", "home", "tmp"))
    for folder in (package, home, temporary):
        folder.mkdir()
    copy_of_package(package)
    make_read_only(package)
    make_read_only(home)
    yield {"PYTHONPATH": str(package), "HOME": str(home), "TMPDIR": str(temporary)}
    make_writable(tmp_path)


def test_commands_work_with_a_read_only_package_and_no_home(container: dict[str, str], tmp_path: Path) -> None:
    """They say so in one line; a folder of this user alone keeps what is compiled, and the fonts."""
    done = run(*COMPARE, "--plot", str(tmp_path / "tmp" / "c.png"), **container)
    assert done.returncode == 0, done.stderr
    assert "congestion" in done.stdout
    notice, written = done.stderr.splitlines()
    assert notice.endswith(NOTICE)
    assert written.startswith("written: ")
    folder = tmp_path / "tmp" / f"resolvent-{os.geteuid()}"
    assert str(folder) in notice
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.suffix for path in folder.rglob("*.nb?")} == {".nbi", ".nbc"}
    assert list(folder.glob("matplotlib/fontlist*"))

    done = run(*TRAIN, "--out", str(tmp_path / "tmp" / "run"), **container)
    assert done.returncode == 0, done.stderr
    assert "first-order on copy: accuracy" in done.stdout
    notices = [
        line for line in done.stderr.splitlines() if line.startswith("resolvent:") and not line.startswith(COMPILING)
    ]
    assert [line.endswith(NOTICE) for line in notices] == [True], done.stderr
    assert list((folder / "kernels").iterdir())


def test_a_temporary_folder_that_others_may_have_made_is_not_used(container: dict[str, str], tmp_path: Path) -> None:
    """Its name can be guessed, and code would be loaded from it."""
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (tmp_path / "tmp" / f"resolvent-{os.geteuid()}").symlink_to(other)
    done = run(*COMPILE, **container)
    assert done.returncode == 0, done.stderr
    assert "are compiled again by every process; to choose" in done.stderr
    assert not list(other.iterdir())


def test_which_temporary_folders_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is this user's alone, below one in which nobody else can replace it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    find, own = disk_cache.temporary_folder.__wrapped__, tmp_path / f"resolvent-{os.geteuid()}"
    for mode, usable in ((0o700, True), (0o1777, True), (0o777, False), (0o770, False)):
        tmp_path.chmod(mode)
        assert (find() is not None) == usable, oct(mode)
    tmp_path.chmod(0o700)
    own.chmod(0o755)
    assert find() is None
    own.rmdir()
    own.touch(mode=0o700)
    assert find() is None
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert find() is None


UNKNOWN = """
import os, pwd, runpy, sys

def unknown(_):
    raise KeyError

os.environ.pop("HOME")
pwd.getpwuid = unknown
runpy.run_module("resolvent", run_name="__main__", alter_sys=True)
"""


def test_a_user_whom_the_system_does_not_know_needs_no_home(container: dict[str, str], tmp_path: Path) -> None:
    """As containers have them. Without HOME `~` stays as it is, and would be made a folder right here."""
    here = tmp_path / "here"
    here.mkdir()
    drawn = ("-c", UNKNOWN, *COMPARE[2:], "--plot", str(tmp_path / "c.png"))
    for command, home, lines in ((drawn, "/", 2), (COMPILE, "relative", 1)):
        done = run(*command, cwd=here, **container | {"HOME": home})
        assert done.returncode == 0, done.stderr
        assert not list(here.iterdir())
        assert done.stderr.splitlines()[0].endswith(NOTICE)
        assert len(done.stderr.splitlines()) == lines, done.stderr


def test_a_folder_that_is_named_is_used_without_a_word(container: dict[str, str], tmp_path: Path) -> None:
    done = run(*COMPILE, **container, NUMBA_CACHE_DIR=str(tmp_path / "mine"))
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "mine").rglob("*.nbi"))
    assert not list((tmp_path / "tmp").iterdir())


def test_what_is_compiled_works_if_it_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full disk, say."""
    from numba.core.caching import IndexDataCacheFile

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    assert disk_cache.cached_njit()(_double)(2) == 4


def _double(value: int) -> int:
    return 2 * value
