"""The documents of a source, piece by piece, from any place on: memory is bounded by a piece, or one record.

A text file is read in pieces of at most `PIECE` bytes that end before a gap (a line end, or else a space). GPT-2's BPE
has a boundary before every gap, so that the tokens of the pieces are the tokens of the whole; only a stretch of `PIECE`
bytes in which no gap begins is cut within a word. Line ends, byte order marks and all else stay as they are.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from resolvent.text.corpora import hub_records
from resolvent.text.files import TextError
from resolvent.text.sources import Source, intact, parquet, share_of, unpacked
from resolvent.text.tokenizer import WHITE

PIECE = 2**20
LONGEST_LINE = 2**30  # bytes of a line of .jsonl
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACED = "\ufffd"
_Record = tuple[Any, int, int, str]  # value, characters replaced, where the source goes on, how the place is called


@final
@dataclass(frozen=True)
class Piece:
    """Some text of a document. `at` is where the source goes on after it: a byte, or the number of a record."""

    split: str
    text: str
    starts: bool  # whether a document starts with it
    at: int
    replaced: int = 0  # characters that were no UTF-8


@final
@dataclass(frozen=True)
class Options:
    """`field` has the text of a record. `errors` says what is done about text that is no UTF-8: strict or replace."""

    field: str = "text"
    errors: str = "strict"
    held_out: float = 0.05


def pieces(source: Source, at: int, options: Options) -> Iterator[Piece]:
    """What is left of a source at this place."""
    if source.kind == "txt":
        yield from _pieces_of_text(source, at, options)
        return
    records = {"jsonl": _lines, "parquet": _rows, "hub": _hub}[source.kind](source, at, options)
    for found, before, after, where in records:
        if not isinstance(found, str | None):
            raise TextError(f"{where}: expected '{options.field}' to be a text, got {type(found).__name__}.")
        text, replaced = _whole_characters(found or "", where, options)
        if text:
            split = source.split or share_of(hashlib.sha256(text.encode()).hexdigest(), options.held_out)
            yield Piece(split, text, True, after, before + replaced)


def _pieces_of_text(source: Source, at: int, options: Options) -> Iterator[Piece]:
    with intact(source.name), unpacked(source.path) as file:
        file.seek(at)
        for split, begin, end in source.ranges():
            buffer, place = b"", max(at, begin)
            while place < end:
                while len(buffer) < min(PIECE, end - place):
                    more = file.read(min(PIECE, end - place) - len(buffer))
                    if not more:
                        raise TextError(f"{source.name} changed while it was read: expected {source.bytes:,} bytes.")
                    buffer += more
                cut = len(buffer) if place + len(buffer) == end else _before_a_gap(buffer)
                text, replaced = _decoded(buffer[:cut], source.name, place, options)
                starts, place, buffer = place == begin, place + cut, buffer[cut:]
                yield Piece(split, text, starts, place, replaced)


def _before_a_gap(data: bytes) -> int:
    """The last place where a gap begins, at a line end if there is any; or else the last between two characters."""
    for gap in (b"\n", b" "):
        place = data.rfind(gap)
        while place > 0:
            head = data[:place].rstrip()  # the gap may have begun before
            before = head[-4:].decode(errors="ignore")[-1:]
            if not before or before not in WHITE:
                break
            place = len(head) - len(before.encode())  # a gap that is not ASCII
        if place > 0 and head:
            return len(head)
    return codecs.utf_8_decode(data, "replace", False)[1] or len(data)


def _decoded(data: bytes, name: str, place: int, options: Options) -> tuple[str, int]:
    """The text, and how many characters of it stand for what was no UTF-8."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError as error:
        if options.errors == "strict":
            raise TextError(
                f"{name} is no UTF-8 at byte {place + error.start:,} ({error.reason}): convert the file, or use "
                "--errors replace, which puts U+FFFD there and counts them."
            ) from error
    text = data.decode(errors="replace")
    return text, text.count(_REPLACED) - data.count(_REPLACED.encode())


def _whole_characters(text: str, where: str, options: Options) -> tuple[str, int]:
    """JSON can spell half of a surrogate pair, which is no character."""
    if text.isascii() or _SURROGATES.search(text) is None:
        return text, 0
    if options.errors == "strict":
        raise TextError(f"{where}: half of a surrogate pair, which is no character: mend it, or use --errors replace.")
    return _SURROGATES.subn(_REPLACED, text)


def _lines(source: Source, at: int, options: Options) -> Iterator[_Record]:
    with intact(source.name), unpacked(source.path) as file:
        file.seek(at)
        while line := file.readline(LONGEST_LINE):
            where, begin, at = f"{source.name}, line at byte {at:,}", at, at + len(line)
            if len(line) == LONGEST_LINE:
                raise TextError(f"{where}: longer than {LONGEST_LINE:,} bytes: expected one document to a line.")
            text, replaced = _decoded(line, source.name, begin, options)
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except ValueError as error:
                raise TextError(f"{where}: expected JSON ({error}).") from error
            if not isinstance(record, dict) or options.field not in record:
                keys = ", ".join(record) if isinstance(record, dict) else type(record).__name__
                raise TextError(f"{where}: expected a field '{options.field}', got {keys or 'nothing'}; use --field.")
            yield record[options.field], replaced, at, where


def _rows(source: Source, at: int, options: Options) -> Iterator[_Record]:
    file, row = parquet(source), 0
    if options.field not in file.schema_arrow.names:
        names = ", ".join(file.schema_arrow.names)
        raise TextError(f"{source.name}: expected a column '{options.field}', got {names}; use --field.")
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if row + size <= at:
            row += size
            continue
        for value in _values(file, group, options.field, source.name):
            row += 1
            if row > at:
                yield value, 0, row, f"{source.name}, row {row - 1:,}"


def _values(file: Any, group: int, column: str, name: str) -> Iterator[Any]:
    try:
        for batch in file.iter_batches(1000, row_groups=[group], columns=[column]):
            yield from batch.column(0).to_pylist()
    except (OSError, ValueError) as error:  # what pyarrow raises for pages that it cannot read
        said = str(error).splitlines()[0]
        raise TextError(f"{name} is damaged: expected a whole parquet file ({said}).") from error


def _hub(source: Source, at: int, options: Options) -> Iterator[_Record]:
    for number, record in enumerate(hub_records(source.name, source.sha256, at), at):
        yield record[options.field], 0, number + 1, f"{source.name}, record {number:,}"
