"""What a corpus is made of: files, what is in them, and which split each text falls to.

Documents. A .txt file is one document; each line of a .jsonl file and each row of a .parquet file is one (its field
`text`, or another that is named). .txt.gz and .jsonl.gz are unpacked while they are read. Empty documents are left out.
Folders are searched for such files, in the order of their names.

Splits. The first rule that fits:

- *kept*: every file is named after a split (train, validation, valid, val or test; train-00000-of-00004 too), one of
  them train: each goes where its name says.
- *tail*: one or two .txt files: each gives its last share to test and the share before that to validation, cut at the
  next line end (or space, where none is near).
- *files*: three or more .txt files: in the order of their sha256 the first share goes to test, the next to validation,
  at least one file each.
- *documents*: anything else: the sha256 of a document's text, read as a number from 0 to 1, is below one share (test),
  below two (validation), or above (train). Equal documents fall to the same split.

The share is `held_out`, 5 % unless it is given.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast, final

from resolvent.text.files import BLOCK, TextError

SPLITS = ("train", "validation", "test")
_SUFFIXES = {".txt": "txt", ".txt.gz": "txt", ".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet"}
_NAMED = re.compile(r"(train|validation|valid|val|test)(-\d+-of-\d+)?(\.txt|\.jsonl|\.parquet)(\.gz)?")
_NEAR = 2**16  # bytes within which a line end is looked for


@final
@dataclass(frozen=True)
class Source:
    """A file of documents. `split` is None where each document has its own, or where `cuts` divide the file."""

    name: str  # without the folders above what was given
    path: Path
    kind: str  # txt, jsonl, parquet or hub
    stored: int  # bytes of the file
    changed: float  # when
    bytes: int = 0  # of the content, unpacked
    rows: int = 0  # of a parquet file
    sha256: str = ""  # of the content, unpacked; the revision, for a hub
    split: str | None = None
    cuts: tuple[int, int] | None = None  # where validation and test begin

    def facts(self) -> dict[str, Any]:
        """Everything but where and when, as plain values."""
        found = dataclasses.asdict(self)
        del found["path"], found["changed"]
        return found | {"cuts": None if self.cuts is None else list(self.cuts)}

    def with_facts(self, facts: dict[str, Any]) -> Source:
        return dataclasses.replace(self, **(facts | {"cuts": None if facts["cuts"] is None else tuple(facts["cuts"])}))

    def ranges(self) -> list[tuple[str, int, int]]:
        """The parts of a text file: split, begin and end in bytes."""
        if self.cuts is None:
            assert self.split is not None
            return [(self.split, 0, self.bytes)]
        bounds = [0, *self.cuts, self.bytes]
        return [(split, bounds[i], bounds[i + 1]) for i, split in enumerate(SPLITS)]


def find(paths: Sequence[Path]) -> list[Source]:
    """The files that are named, and those in folders that are named."""
    found = []
    for path in paths:
        if path.is_dir():
            inside = sorted((each for each in path.rglob("*") if _kind(each) and each.is_file()), key=_order(path))
            if not inside:
                raise TextError(f"no texts in the folder {path}: expected files that end in {', '.join(_SUFFIXES)}.")
            found += [_source(each, f"{path.resolve().name}/{each.relative_to(path).as_posix()}") for each in inside]
        elif path.is_file():
            if not _kind(path):
                raise TextError(f"cannot read {path}: expected a name that ends in {', '.join(_SUFFIXES)}.")
            found.append(_source(path, path.name))
        else:
            raise TextError(f"there is no file or folder {path}.")
    return found


def survey(found: Sequence[Source], held_out: float, show: Callable[[int], None]) -> tuple[list[Source], str]:
    """Read everything once: sizes, hashes, and from these the splits and the rule that gave them.

    `show` is told the bytes that were read, as they are stored.
    """
    sources = []
    for source in found:
        sources.append(_measured(source))
        show(source.stored)
    if "hub" in {source.kind for source in sources}:
        return sources, "documents"
    names = [_NAMED.fullmatch(source.path.name) for source in sources]
    kept = [re.sub(r"^val.*", "validation", name[1]) for name in names if name is not None]
    if len(kept) == len(sources) and "train" in kept:
        return [dataclasses.replace(s, split=split) for s, split in zip(sources, kept, strict=True)], "kept"
    if any(s.kind != "txt" for s in sources):
        falls = [share_of(s.sha256, held_out) if s.kind == "txt" else None for s in sources]
        return [dataclasses.replace(s, split=split) for s, split in zip(sources, falls, strict=True)], "documents"
    texts = [i for i, s in enumerate(sources) if s.bytes]
    if len(texts) < 3:
        return [dataclasses.replace(s, cuts=_tails(s, held_out)) for s in sources], "tail"
    texts.sort(key=lambda i: (sources[i].sha256, i))
    count = max(1, round(held_out * len(texts))) if held_out else 0
    held = dict.fromkeys(texts[:count], "test") | dict.fromkeys(texts[count : 2 * count], "validation")
    return [dataclasses.replace(s, split=held.get(i, "train")) for i, s in enumerate(sources)], "files"


def share_of(digest: str, held_out: float) -> str:
    """The split of a document with this sha256."""
    share = int(digest[:16], 16) / 2**64
    return "test" if share < held_out else "validation" if share < 2 * held_out else "train"


def unchanged(found: Sequence[Source], facts: Sequence[dict[str, Any]], since: float) -> bool:
    """Nothing was touched since then, as far as names, sizes and times tell."""
    alike = [(s.name, s.stored) for s in found] == [(f["name"], f["stored"]) for f in facts]
    return alike and all(source.changed < since for source in found)


@contextmanager
def intact(name: str) -> Iterator[None]:
    """Say which file is damaged, or cannot be read."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{name} is damaged: expected a whole gzip file ({error}).") from error
    except OSError as error:
        said = error.strerror or error
        raise TextError(
            f"{name} cannot be read ({said}): expected a file that you may read, on a sound disk."
        ) from error


def unpacked(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def parquet(source: Source) -> Any:
    """A parquet file, opened by pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(f"{source.name} needs pyarrow: pip install 'resolvent[text]'.") from error
    try:
        return ParquetFile(source.path)
    except pyarrow.ArrowInvalid as error:
        raise TextError(f"{source.name} is damaged: expected a whole parquet file ({error}).") from error


def _kind(path: Path) -> str | None:
    return next((kind for suffix, kind in _SUFFIXES.items() if path.name.endswith(suffix)), None)


def _order(folder: Path) -> Callable[[Path], str]:
    return lambda path: path.relative_to(folder).as_posix()


def _source(path: Path, name: str) -> Source:
    seen = path.stat()
    return Source(name, path, _kind(path) or "", seen.st_size, max(seen.st_mtime, seen.st_ctime))


def _measured(source: Source) -> Source:
    if source.kind == "hub":
        return source
    digest, size = hashlib.sha256(), 0
    with intact(source.name), unpacked(source.path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    rows = parquet(source).metadata.num_rows if source.kind == "parquet" else 0
    return dataclasses.replace(source, bytes=size, rows=rows, sha256=digest.hexdigest())


def _tails(source: Source, held_out: float) -> tuple[int, int]:
    cuts = []
    with intact(source.name), unpacked(source.path) as file:
        for share in (1 - 2 * held_out, 1 - held_out):
            target = round(share * source.bytes)
            file.seek(target)
            near = file.read(_NEAR)
            cuts.append(target + (_line_end(near) if target < source.bytes else 0))
    return cuts[0], cuts[1]


def _line_end(near: bytes) -> int:
    """After the first line end, or the first space, or at the first character."""
    for gap in (b"\n", b" "):
        if gap in near:
            return near.index(gap) + 1
    return next((i for i, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80), 0)
