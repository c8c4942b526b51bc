"""Runs and studies in folders that cannot be written: finished ones are read, others say so at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from resolvent.files import ReadOnlyError, require_writable
from resolvent.studies import grid, table1
from resolvent.train import checkpoint
from tests.commands import command
from tests.confined import make_read_only, make_writable, run
from tests.small_runs import QUICK

CHANGES = [word for change in [*QUICK, "train.steps=2", "train.eval_every=2"] for word in ("--set", change)]
TRAIN = ["-m", "resolvent", "train", "copy", "--pattern", "first-order", "--preset", "smoke", *CHANGES]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    make_writable(tmp_path)


def test_a_finished_run_on_a_read_only_disk_is_printed(folder: Path) -> None:
    """Also with a checkpoint left by a kill just after the record was written."""
    done = command(*TRAIN[2:], "--out", str(folder))
    assert done.returncode == 0, done.stderr
    (folder / checkpoint.FILE).touch()
    make_read_only(folder)
    again = run(*TRAIN, "--out", str(folder))
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert "Traceback" not in again.stderr


def test_an_unfinished_run_on_a_read_only_disk_says_so(folder: Path) -> None:
    folder.mkdir()
    make_read_only(folder)
    done = run(*TRAIN, "--out", str(folder))
    assert done.returncode == 2
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith(f"error: {folder}")
    assert error.endswith("cannot be written (Permission denied): choose another --out, or make it writable.")
    assert "Traceback" not in done.stderr


def test_a_read_only_disk_is_not_touched_for_a_finished_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a disk is mounted read-only, even removing what is not there is an error."""
    cells = table1.cells("smoke", folder, tasks=["copy"], structures=["first-order"], seeds=1,
                         changes=[*QUICK, "train.steps=2", "train.eval_every=2"])  # fmt: skip
    [first] = grid.run(cells, 1)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    from resolvent.train import train

    for name in ("unlink", "mkdir", "touch"):
        monkeypatch.setattr(Path, name, read_only)
    assert train(cells[0].config, cells[0].folder) == first
    with pytest.raises(ReadOnlyError, match=r"cannot be written \(Read-only file system\): choose another --out"):
        require_writable(folder / "other")
