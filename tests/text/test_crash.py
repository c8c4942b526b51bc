"""Killed at any moment, or out of room: nothing half-written has a final name, and the next call gives the same."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resolvent.text import DiskFullError, prepare

# The command as it is, but saving after every small piece.
COMMAND = """
import sys
from importlib import import_module
import_module("resolvent.text.prepare").EVERY = 0.0
import_module("resolvent.text.reading").PIECE = 2**15
from resolvent.cli import main
sys.argv[0] = "resolvent"
main()
"""

# One process for each call of the system that changes a file, killed in its place; then another that goes on.
EVERY_CALL = """
import os, signal, sys
from importlib import import_module
from pathlib import Path
from resolvent.text import prepare
import_module("resolvent.text.prepare").EVERY = 0.0
import_module("resolvent.text.reading").PIECE = 64
source, folder = map(Path, sys.argv[1:])

def run(out, kill):
    child = os.fork()
    if child == 0:
        left = kill
        def wrapped(call):
            def maybe(*arguments, **options):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)
            return maybe
        for name in ("open", "write", "replace", "unlink", "truncate", "utime", "mkdir"):
            setattr(os, name, wrapped(getattr(os, name)))
        os.fsync = lambda _: None
        prepare(source, out, "bytes")
        os._exit(0)
    return os.waitpid(child, 0)[1]

def content(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}

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
    """Texts and records, `size` bytes of each, in words of no meaning."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 9)))) for _ in range(500)] + ["é", "日本"]
    prose = " ".join(words[i] + "\n" * (i % 10 == 0) for i in rng.integers(0, len(words), size // 6).tolist())
    folder.mkdir()
    (folder / "a.txt").write_text(prose)
    step = max(100, size // 40)
    records = [json.dumps({"text": prose[i : i + step]}) for i in range(0, len(prose), step)]
    (folder / "b.jsonl").write_text("\n".join(records))
    return folder


def test_killed_in_place_of_every_call(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts", 300)
    command = [sys.executable, "-c", EVERY_CALL, str(source), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_killed_at_random_moments(tmp_path: Path) -> None:
    source, out = write_texts(tmp_path / "texts", 2_000_000), tmp_path / "out"

    def start(folder: Path) -> subprocess.Popen[str]:
        arguments = ["data", "prepare", str(source), "--tokenizer", "bytes", "--out", str(folder)]
        return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, text=True,
                                stdout=subprocess.DEVNULL)  # fmt: skip

    def begun(partial: Path, process: subprocess.Popen[str]) -> str:
        """Wait for the work to begin; what is said when it goes on."""
        if (partial / "progress.json").exists():
            return process.stderr.readline()
        while not (partial / "plan.json").exists():
            time.sleep(0.002)
        return ""

    whole = start(tmp_path / "whole")
    begun(tmp_path / "whole.partial", whole)
    begin = time.monotonic()
    assert whole.communicate()[1].startswith("written")
    seconds = time.monotonic() - begin
    rng, kills, resumed = random.Random(0), 0, 0
    for _ in range(8):
        process = start(out)
        resumed += begun(tmp_path / "out.partial", process).startswith("going on after")
        time.sleep(rng.uniform(0, seconds / 10))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if out.exists():  # this machine was quicker than before
            break
    assert start(out).communicate()[1].endswith(f"written: {out}\n")
    assert kills >= 4, "expected most kills to meet a process at work"
    assert resumed >= 3, "expected most processes to go on from the one before"
    assert content(out) == content(tmp_path / "whole")
    assert not (tmp_path / "out.partial").exists()


def test_full_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("resolvent.text.prepare"), "EVERY", 0.0)
    monkeypatch.setattr(import_module("resolvent.text.reading"), "PIECE", 64)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    source, write = write_texts(tmp_path / "texts", 300), os.write
    prepare(source, tmp_path / "whole", "bytes")
    for fail in range(1, 1000):
        left = fail

        def full(descriptor: int, data: Any) -> int:
            nonlocal left
            left -= 1
            if left == 0:
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
                said = str(error)
        assert re.match(rf"no room to write {tmp_path}.* \(.*No space left on device\): free some space and run", said)
        assert not out.exists()
        assert {path.name for path in (tmp_path / f"{fail}.partial").iterdir()} <= {
            "plan.json", "progress.json", "train.bin", "validation.bin", "test.bin",
        }  # fmt: skip
        prepare(source, out, "bytes")
        assert content(out) == content(tmp_path / "whole")
    assert fail > 20


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    source = write_texts(tmp_path / "texts", 300)
    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="Input/output error") as caught:
        prepare(source, tmp_path / "out", "bytes")
    assert not isinstance(caught.value, DiskFullError)


def test_a_limit_of_the_system(tmp_path: Path) -> None:
    """Files may not grow beyond 150,000 bytes: said in one line; without the limit the same command goes on."""
    source = write_texts(tmp_path / "texts", 200_000)
    arguments = ["data", "prepare", str(source), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
    done = subprocess.run([sys.executable, "-c", limit + COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: no room to write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "going on after" in done.stderr
    prepare(source, tmp_path / "whole", "bytes")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
