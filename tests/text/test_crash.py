"""Killed at any moment, or out of disk space: no partial file gets a final name, and the next call completes."""

import errno
import json
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resolvent.text import DiskFullError, prepare
from tests import processes

# One process per system call that changes a file, killed instead of making it; then another that resumes.
EVERY_CALL = """
import os, signal, sys
from importlib import import_module
from pathlib import Path
from resolvent.text import prepare
import_module("resolvent.text.prepare").SAVE_INTERVAL = 0.0
import_module("resolvent.text.reading").PIECE = 64
source, folder = map(Path, sys.argv[1:])

def run(out, kill):
    child = os.fork()
    if child == 0:
        remaining = kill
        def wrapped(call):
            def maybe(*arguments, **options):
                nonlocal remaining
                remaining -= 1
                if remaining == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)
            return maybe
        for name in ("open", "write", "replace", "unlink", "truncate", "utime", "mkdir"):
            setattr(os, name, wrapped(getattr(os, name)))
        os.fsync = lambda _: None
        prepare(source, out, "bytes")
        os._exit(0)
    return os.waitpid(child, 0)[1]

def content(out):  # the lock of a process that was killed holds nobody back
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != ".lock"}

assert run(folder / "whole", 0) == 0
for kill in range(1, 1000):
    out = folder / str(kill)
    ended = run(out, kill)
    assert ended in (0, signal.SIGKILL), ended
    if ended == 0:
        break
    if out.exists():  # killed after the last step
        assert content(out) == content(folder / "whole"), kill
    assert run(out, 0) == 0, kill
    assert content(out) == content(folder / "whole"), kill
print(kill)
"""


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_texts(folder: Path, size: int) -> Path:
    """Five texts, and records, `size` bytes in all of each kind, in words of no meaning."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 9)))) for _ in range(500)] + ["é", "日本"]
    prose = " ".join(words[i] + "\n" * (i % 10 == 0) for i in rng.integers(0, len(words), size // 6).tolist())
    folder.mkdir()
    for number in range(5):
        (folder / f"a{number}.txt").write_text(prose[number * len(prose) // 5 : (number + 1) * len(prose) // 5])
    step = max(100, size // 40)
    records = [json.dumps({"text": prose[i : i + step]}) for i in range(0, len(prose), step)]
    (folder / "b.jsonl").write_text("\n".join(records))
    return folder


def test_killed_in_place_of_every_call(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts", 300)
    done = processes.run("-c", EVERY_CALL, str(source), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_full_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("resolvent.text.prepare"), "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(import_module("resolvent.text.reading"), "PIECE", 64)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    source, write = write_texts(tmp_path / "texts", 300), os.write
    prepare(source, tmp_path / "whole", "bytes")
    for fail in range(1, 1000):
        remaining = fail

        def full(descriptor: int, data: Any) -> int:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                write(descriptor, data[: len(data) // 2])  # some of it was written
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data)

        out = tmp_path / str(fail)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            try:
                prepare(source, out, "bytes")
                break
            except DiskFullError as error:
                message = str(error)
        assert re.match(
            rf"no space left to write {tmp_path}.* \(.*No space left on device\): free some space, then rerun", message
        )
        assert not out.exists()
        assert {path.name for path in (tmp_path / f"{fail}.partial").iterdir()} <= {
            "plan.json", "progress.json", "train.bin", "validation.bin", "test.bin",
        }  # fmt: skip
        prepare(source, out, "bytes")
        assert content(out) == content(tmp_path / "whole")
    assert fail > 12


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    source = write_texts(tmp_path / "texts", 300)
    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="Input/output error") as caught:
        prepare(source, tmp_path / "out", "bytes")
    assert not isinstance(caught.value, DiskFullError)
