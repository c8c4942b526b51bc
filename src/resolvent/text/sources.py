"""The sources of a corpus: which files it is made of, what they contain, and which split each document belongs to.

Documents. A text file is one document; each line of a .jsonl file and each row of a .parquet file is one (its field
`text`, or the one named by `field`). Files that end in .gz are decompressed while they are read. Empty documents are
skipped. A file that is named directly is plain text unless it ends in .jsonl, .jsonl.gz or .parquet; folders are
searched for .txt, .jsonl and .parquet files (.gz too), in the order of their names.

Splits. The first rule that applies:

- *kept*: every file is named after a split (train, validation, valid, val or test; train-00000-of-00004 too), at least
  one of them train: each goes where its name says.
- *tail*: one or two text files: the last share of each is test and the share before that is validation, cut at the
  next line end (or space, where none is near).
- *files*: three or more text files: in the order of their sha256, the first share is test, the next is validation,
  at least one file each.
- *names*: the standard library of Python: by the sha256 of a file's name, as documents are by theirs.
- *documents*: anything else: the sha256 of a document's text, read as a number from 0 to 1, is below one share (test),
  below two (validation), or above (train). Equal documents belong to the same split.

The share is `held_out`, 5 % by default.
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
from typing import BinaryIO, cast, final

from resolvent.text.files import BLOCK, TextError
from resolvent.text.info import SPLITS, SourceInfo

_SUFFIXES = {".txt": "txt", ".txt.gz": "txt", ".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".parquet": "parquet"}
_SPLIT_NAME = re.compile(r"(train|validation|valid|val|test)(-\d+-of-\d+)?(\.\w+)?(\.gz)?")
_LINE_END_SEARCH = 2**16  # bytes within which a line end is looked for


@final
@dataclass(frozen=True)
class Source:
    """A file of documents. `split` is None if each document has its own, or if `cuts` divide the file."""

    name: str  # relative to the file or folder that was passed
    path: Path
    kind: str  # txt, jsonl, parquet or hub
    stored: int  # bytes of the file on disk
    changed: float  # modification time
    bytes: int = 0  # of the content, decompressed
    rows: int = 0  # of a parquet file
    sha256: str = ""  # of the content, decompressed; the revision, for a hub dataset
    split: str | None = None
    cuts: tuple[int, int] | None = None  # where validation and test begin

    @property
    def info(self) -> SourceInfo:
        """What is recorded of the source: everything except path and time."""
        return SourceInfo(self.name, self.kind, self.stored, self.bytes, self.rows, self.sha256, self.split, self.cuts)

    def with_info(self, info: SourceInfo) -> Source:
        """The same file with what was recorded of it earlier."""
        return Source(
            info.name, self.path, info.kind, info.stored, self.changed,
            info.bytes, info.rows, info.sha256, info.split, info.cuts,
        )  # fmt: skip

    def ranges(self) -> list[tuple[str, int, int]]:
        """The byte ranges of a text file as (split, begin, end)."""
        if self.cuts is None:
            assert self.split is not None
            return [(self.split, 0, self.bytes)]
        bounds = [0, *self.cuts, self.bytes]
        return [(split, bounds[i], bounds[i + 1]) for i, split in enumerate(SPLITS)]


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """The files at these paths, and those inside folders at these paths."""
    sources = []
    for path in paths:
        if path.is_dir():
            files = sorted((file for file in path.rglob("*") if _kind(file) and file.is_file()), key=_sort_key(path))
            if not files:
                raise TextError(
                    f"no texts in the folder {path}: expected files that end in {', '.join(_SUFFIXES)}. "
                    "Pass files with other names directly."
                )
            sources += [source_of(file, f"{path.resolve().name}/{file.relative_to(path).as_posix()}") for file in files]
        elif path.is_file():
            sources.append(source_of(path, path.name))
        else:
            raise TextError(f"there is no file or folder {path}.")
    return sources


def survey(
    sources: Sequence[Source], held_out: float, on_bytes: Callable[[int], None], *, by_name: bool = False
) -> tuple[list[Source], str]:
    """Read every source once for its size and hash; return the sources with their splits, and the rule that set them.

    `on_bytes` is called with the number of bytes read, as they are stored. If `by_name`, names alone decide on splits.
    """
    measured = []
    for source in sources:
        measured.append(_measure(source))
        on_bytes(source.stored)
    if by_name:
        digests = [hashlib.sha256(source.name.encode()).hexdigest() for source in measured]
        splits = [split_of_hash(digest, held_out) for digest in digests]
        return [dataclasses.replace(s, split=split) for s, split in zip(measured, splits, strict=True)], "names"
    return _assign_splits(measured, held_out)


def _assign_splits(sources: list[Source], held_out: float) -> tuple[list[Source], str]:
    if any(source.kind == "hub" for source in sources):
        return sources, "documents"
    matches = [_SPLIT_NAME.fullmatch(source.path.name) for source in sources]
    named = [re.sub(r"^val.*", "validation", match[1]) for match in matches if match is not None]
    if len(named) == len(sources) and "train" in named:
        return [dataclasses.replace(s, split=split) for s, split in zip(sources, named, strict=True)], "kept"
    if any(s.kind != "txt" for s in sources):
        splits = [split_of_hash(s.sha256, held_out) if s.kind == "txt" else None for s in sources]
        return [dataclasses.replace(s, split=split) for s, split in zip(sources, splits, strict=True)], "documents"
    texts = [i for i, s in enumerate(sources) if s.bytes]
    if len(texts) < 3:
        return [dataclasses.replace(s, cuts=_tail_cuts(s, held_out)) for s in sources], "tail"
    texts.sort(key=lambda i: (sources[i].sha256, i))
    count = max(1, round(held_out * len(texts))) if held_out else 0
    held = dict.fromkeys(texts[:count], "test") | dict.fromkeys(texts[count : 2 * count], "validation")
    return [dataclasses.replace(s, split=held.get(i, "train")) for i, s in enumerate(sources)], "files"


def split_of_hash(digest: str, held_out: float) -> str:
    """The split of a document with this sha256."""
    fraction = int(digest[:16], 16) / 2**64
    return "test" if fraction < held_out else "validation" if fraction < 2 * held_out else "train"


def unchanged(sources: Sequence[Source], recorded: Sequence[SourceInfo], since: float) -> bool:
    """Whether names and sizes are as recorded and no file was modified after `since`."""
    same = [(s.name, s.stored) for s in sources] == [(info.name, info.stored) for info in recorded]
    return same and all(source.changed < since for source in sources)


@contextmanager
def explain_read_errors(name: str) -> Iterator[None]:
    """Turn read errors into a `TextError` that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{name} is damaged: expected a complete gzip file ({error}).") from error
    except OSError as error:
        reason = error.strerror or error
        raise TextError(
            f"{name} cannot be read ({reason}): expected a readable file; check its permissions and the disk."
        ) from error


def open_decompressed(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


@final
class ParquetTable:
    """A parquet file, read by pyarrow one row group at a time."""

    def __init__(self, source: Source) -> None:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ImportError(f"{source.name} needs pyarrow: pip install pyarrow.") from error
        self._name = source.name
        try:
            self._file = ParquetFile(source.path)
        except pyarrow.ArrowInvalid as error:
            raise TextError(f"{source.name} is damaged: expected a complete parquet file ({error}).") from error

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self._file.schema_arrow.names]

    def values(self, column: str) -> Iterator[object]:
        """The values of a column."""
        try:
            for batch in self._file.iter_batches(1000, columns=[column]):
                yield from batch.column(0).to_pylist()
        except (OSError, ValueError) as error:  # what pyarrow raises for pages that it cannot read
            reason = str(error).splitlines()[0]
            raise TextError(f"{self._name} is damaged: expected a complete parquet file ({reason}).") from error


def _kind(path: Path) -> str | None:
    return next((kind for suffix, kind in _SUFFIXES.items() if path.name.endswith(suffix)), None)


def _sort_key(folder: Path) -> Callable[[Path], str]:
    return lambda path: path.relative_to(folder).as_posix()


def source_of(path: Path, name: str) -> Source:
    """A file, before it is read."""
    status = path.stat()
    return Source(name, path, _kind(path) or "txt", status.st_size, max(status.st_mtime, status.st_ctime))


def _measure(source: Source) -> Source:
    if source.kind == "hub":
        return source
    digest, size = hashlib.sha256(), 0
    with explain_read_errors(source.name), open_decompressed(source.path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    rows = ParquetTable(source).rows if source.kind == "parquet" else 0
    return dataclasses.replace(source, bytes=size, rows=rows, sha256=digest.hexdigest())


def _tail_cuts(source: Source, held_out: float) -> tuple[int, int]:
    cuts = []
    with explain_read_errors(source.name), open_decompressed(source.path) as file:
        for fraction in (1 - 2 * held_out, 1 - held_out):
            target = round(fraction * source.bytes)
            file.seek(target)
            following = file.read(_LINE_END_SEARCH)
            cuts.append(target + (_next_cut(following) if target < source.bytes else 0))
    return cuts[0], cuts[1]


def _next_cut(data: bytes) -> int:
    """After the first line end, else after the first space, else at the first character boundary."""
    for separator in (b"\n", b" "):
        if separator in data:
            return data.index(separator) + 1
    return next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
