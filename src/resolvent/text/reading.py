"""Read the documents of a source piece by piece: memory is bounded by a piece, or one record.

A text file is read in pieces of at most `PIECE` bytes that end before white space (a line end, or else a space).
GPT-2's BPE has a token boundary before every run of white space, so the tokens of the pieces are the tokens of the full
text; only a stretch of `PIECE` bytes without white space is cut within a word. Line ends and byte order marks are kept.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

from resolvent import untrusted
from resolvent.text.corpora import hub_records
from resolvent.text.files import TextError
from resolvent.text.sources import ParquetTable, Source, explain_read_errors, open_decompressed, split_of_hash
from resolvent.text.tokenizer import WHITE

PIECE = 2**20
LONGEST_LINE = 2**24  # bytes of a line of .jsonl: what a small compressed file may grow to in memory
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


@final
@dataclass(frozen=True)
class Piece:
    """Part of the text of a document. `end` is how far the source is read with it: bytes, or records."""

    split: str
    text: str
    starts_document: bool
    end: int
    replaced: int = 0  # characters that were not valid UTF-8


@final
@dataclass(frozen=True)
class ReadOptions:
    """`field` holds the text of a record; `errors` is "strict" or "replace" for text that is not valid UTF-8."""

    field: str = "text"
    errors: str = "strict"
    held_out: float = 0.05


class _Record(NamedTuple):
    value: object  # of the text field, not yet checked
    replaced: int  # characters that were not valid UTF-8
    end: int  # how far the source is read with it
    label: str  # where the record is, for error messages


def pieces(source: Source, options: ReadOptions) -> Iterator[Piece]:
    """The pieces of a source."""
    if source.kind == "txt":
        yield from _text_pieces(source, options)
        return
    records = {"jsonl": _lines, "parquet": _rows, "hub": _hub}[source.kind](source, options)
    for record in records:
        if not isinstance(record.value, str | None):
            kind = type(record.value).__name__
            raise TextError(f"{record.label}: expected '{options.field}' to be a string, got {kind}.")
        text, replaced = _replace_surrogates(record.value or "", record.label, options)
        if text:
            split = source.split or split_of_hash(hashlib.sha256(text.encode()).hexdigest(), options.held_out)
            yield Piece(split, text, True, record.end, record.replaced + replaced)


def _text_pieces(source: Source, options: ReadOptions) -> Iterator[Piece]:
    with explain_read_errors(source.name), open_decompressed(source.path) as file:
        for split, begin, end in source.ranges():
            buffer, current = b"", begin
            while current < end:
                while len(buffer) < min(PIECE, end - current):
                    block = file.read(min(PIECE, end - current) - len(buffer))
                    if not block:
                        raise TextError(f"{source.name} changed while it was read: expected {source.bytes:,} bytes.")
                    buffer += block
                cut = len(buffer) if current + len(buffer) == end else _cut_before_white_space(buffer)
                text, replaced = _decode(buffer[:cut], source.name, current, options)
                starts_document, current, buffer = current == begin, current + cut, buffer[cut:]
                yield Piece(split, text, starts_document, current, replaced)


def _cut_before_white_space(data: bytes) -> int:
    """Where the last run of white space begins, preferring line ends; else the last character boundary."""
    for separator in (b"\n", b" "):
        index = data.rfind(separator)
        while index > 0:
            head = data[:index].rstrip()  # the run may begin earlier
            before = head[-4:].decode(errors="ignore")[-1:]
            if not before or before not in WHITE:
                break
            index = len(head) - len(before.encode())  # white space that is not ASCII
        if index > 0 and head:
            return len(head)
    return codecs.utf_8_decode(data, "replace", False)[1] or len(data)


def _decode(data: bytes, name: str, offset: int, options: ReadOptions) -> tuple[str, int]:
    """The text, and how many of its characters replace bytes that were not valid UTF-8."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError as error:
        if options.errors == "strict":
            raise TextError(
                f"{name} is not valid UTF-8 at byte {offset + error.start:,} ({error.reason}): convert the file, or "
                "use --errors replace, which inserts U+FFFD and counts the replacements."
            ) from error
    text = data.decode(errors="replace")
    return text, text.count(_REPLACEMENT) - data.count(_REPLACEMENT.encode())


def _replace_surrogates(text: str, label: str, options: ReadOptions) -> tuple[str, int]:
    """JSON can encode half of a surrogate pair, which is not a valid character."""
    if text.isascii() or _SURROGATES.search(text) is None:
        return text, 0
    if options.errors == "strict":
        raise TextError(
            f"{label}: expected valid characters, got half of a surrogate pair: fix it, or use --errors replace."
        )
    return _SURROGATES.subn(_REPLACEMENT, text)


def _lines(source: Source, options: ReadOptions) -> Iterator[_Record]:
    position = 0
    with explain_read_errors(source.name), open_decompressed(source.path) as file:
        while line := file.readline(LONGEST_LINE):
            label, begin, position = f"{source.name}, line at byte {position:,}", position, position + len(line)
            if len(line) == LONGEST_LINE:
                raise TextError(
                    f"{label}: longer than {LONGEST_LINE:,} bytes: expected one document per line; "
                    "split longer ones, or write them as .txt."
                )
            text, replaced = _decode(line, source.name, begin, options)
            if not text.strip():
                continue
            try:
                record = untrusted.parse(text, LONGEST_LINE)
            except ValueError as error:
                raise TextError(f"{label}: {error}") from None
            if not isinstance(record, dict) or options.field not in record:
                keys = ", ".join(record) if isinstance(record, dict) else type(record).__name__
                raise TextError(f"{label}: expected a field '{options.field}', got {keys or 'nothing'}; use --field.")
            yield _Record(record[options.field], replaced, position, label)


def _rows(source: Source, options: ReadOptions) -> Iterator[_Record]:
    table = ParquetTable(source)
    if options.field not in table.columns:
        columns = ", ".join(table.columns)
        raise TextError(f"{source.name}: expected a column '{options.field}', got {columns}; use --field.")
    for row, value in enumerate(table.values(options.field)):
        yield _Record(value, 0, row + 1, f"{source.name}, row {row:,}")


def _hub(source: Source, options: ReadOptions) -> Iterator[_Record]:
    for index, record in enumerate(hub_records(source.name, source.sha256)):
        yield _Record(record[options.field], 0, index + 1, f"{source.name}, record {index:,}")
