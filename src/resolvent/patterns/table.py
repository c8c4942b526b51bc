"""Reads as a table that files can hold, as a Python function, or as a rule with a name."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError
from resolvent.patterns.checks import require_length
from resolvent.patterns.explicit import RowReads
from resolvent.patterns.strides import Integers, frozen

MOST_READS = 1 << 22  # of a table in a file: 16 MB before it is compressed
MOST_TOKENS = 1 << 18  # and of its tokens, whose slots are assigned one by one
_WORD = np.dtype("<u4")
_BUDGET: ContextVar[list[int] | None] = ContextVar("what tables may still take", default=None)
_MOST_WEIGHT = 1 << 23
_SIZES = f"at most {MOST_READS:,} reads of {MOST_TOKENS:,} tokens"
_TOO_MANY = f"the tables of reads are too large for one file: expected {_SIZES} each, and not much more in all."


@contextmanager
def tables_within_limits() -> Iterator[None]:
    """Raise an error where the tables of one file take more than `check_tables` allows."""
    token = _BUDGET.set([_MOST_WEIGHT])
    try:
        yield
    finally:
        _BUDGET.reset(token)


def check_tables(tables: Iterable[Table]) -> None:
    """Raise an error unless one file can hold all of these."""
    if sum(table.weight for table in set(tables)) > _MOST_WEIGHT:
        raise PatternError(_TOO_MANY)


@final
@dataclass(frozen=True, repr=False)
class Table(RowReads):
    """The reads of n tokens in compressed rows, as bytes: equal if the content is."""

    counts: bytes
    distances: bytes  # of each row, nearest first

    @classmethod
    def of(cls, rows: Sequence[npt.ArrayLike]) -> Table:
        """From the positions that each token reads, in any order; they are checked."""
        if not len(rows):
            raise PatternError("expected at least one row, got none.")
        each = [i - _checked(row, i)[::-1] for i, row in enumerate(rows)]
        counts = np.array([len(row) for row in each], dtype=_WORD)
        return cls(counts.tobytes(), np.concatenate(each).astype(_WORD).tobytes())

    @classmethod
    def parse(cls, text: str) -> Table:
        """From what `spelling` has after the colon."""
        if re.fullmatch(r"[0-9]+@[0-9a-f]+", text):
            raise PatternError(f"'explicit:{text[:40]}' names a table by its digest: pass the pattern itself.")
        words = np.frombuffer(_unpacked(text), dtype=_WORD)
        n = int(words[0]) if len(words) else 0
        counts, distances = words[1 : n + 1], words[n + 1 :]
        small = 1 <= n <= MOST_TOKENS and len(distances) <= MOST_READS
        if not small or len(counts) < n or int(counts.sum(dtype=np.int64)) != len(distances):
            raise _damaged(text, f"the spelling of a table with {_SIZES}")
        budget = _BUDGET.get()
        if budget is not None:
            budget[0] -= _weight(n, len(distances))
            if budget[0] < 0:
                raise PatternError(_TOO_MANY)
        token = np.repeat(np.arange(n, dtype=_WORD), counts)
        grows = distances > 0
        grows[1:] &= (token[1:] != token[:-1]) | (distances[1:] > distances[:-1])
        if not np.all(grows) or np.any(distances > token):
            raise _damaged(text, "past positions, nearest first, each once")
        return cls(counts.tobytes(), distances.tobytes())

    @cached_property
    def _rows(self) -> tuple[Integers, Integers]:
        counts = np.frombuffer(self.counts, dtype=_WORD).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.repeat(np.arange(len(counts)), counts)
        return frozen(starts), frozen(tokens - np.frombuffer(self.distances, dtype=_WORD).astype(np.int64))

    @property
    def limit(self) -> int:
        return len(self.counts) // _WORD.itemsize

    @property
    def weight(self) -> int:
        """How much of what a file may hold it takes."""
        return _weight(self.limit, len(self.distances) // _WORD.itemsize)

    def listed(self, n: int) -> tuple[Integers, Integers]:
        starts, positions = self._rows
        starts = starts[: n + 1]
        row = np.repeat(np.arange(n), np.diff(starts))
        from_the_end = starts[row] + starts[row + 1] - 1 - np.arange(starts[-1])
        return starts, positions[from_the_end]

    def sources(self, i: int) -> Integers:
        starts, positions = self._rows
        return positions[starts[i] : starts[i + 1]][::-1]

    @cached_property
    def reads_several(self) -> bool:
        return bool(np.diff(self._rows[0]).max() > 1)

    @cached_property
    def spelling(self) -> str:
        if len(self.distances) // _WORD.itemsize > MOST_READS or self.limit > MOST_TOKENS:
            raise PatternError(f"{self.label} is too large for a file: expected {_SIZES}.")
        content = np.array([self.limit], dtype=_WORD).tobytes() + self.counts + self.distances
        return "explicit:" + base64.urlsafe_b64encode(zlib.compress(content, 9)).decode().rstrip("=")

    @cached_property
    def label(self) -> str:
        digest = hashlib.sha256(self.counts + self.distances).hexdigest()
        return f"explicit:{self.limit}@{digest[:8]}"


@final
@dataclass(frozen=True, repr=False)
class FunctionReads(RowReads):
    """Reads from a Python function of the token. Equal only to reads with the same function object."""

    function: Callable[[int], Iterable[int]]

    @property
    def spelling(self) -> str:
        return f"explicit:<{getattr(self.function, '__name__', type(self.function).__name__)}>"

    @property
    def has_spelling(self) -> bool:
        return False

    def sources(self, i: int) -> Integers:
        return _checked(list(self.function(i)), i)


@final
@dataclass(frozen=True, repr=False)
class NamedReads(RowReads):
    """Reads from a rule that a spelling names, ascending and distinct. Equal if the names are."""

    name: str
    rule: Callable[[int], Integers] = field(compare=False)

    @property
    def spelling(self) -> str:
        return self.name

    def sources(self, i: int) -> Integers:
        return self.rule(i)


def _weight(tokens: int, reads: int) -> int:
    return 8 * tokens + reads


def _unpacked(text: str) -> bytes:
    """What a spelling has in base64 and zlib: whole words, nothing before or after them, and not too many."""
    expected = f"the spelling of a table with {_SIZES}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise _damaged(text, expected)
    unpacking = zlib.decompressobj()
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        content = unpacking.decompress(packed, _WORD.itemsize * (1 + MOST_TOKENS + MOST_READS))
    except (binascii.Error, zlib.error):
        raise _damaged(text, expected) from None
    if not unpacking.eof or unpacking.unused_data or len(content) % _WORD.itemsize:
        raise _damaged(text, expected)
    return content


def _damaged(text: str, expected: str) -> PatternError:
    shown = text if len(text) <= 24 else f"{text[:24]}…"
    return PatternError(f"'explicit:{shown}' is damaged: expected {expected}.")


def reads_of(rows: object, n: int | str | None) -> RowReads:
    """What `resolvent.explicit` takes: a function of i, compressed rows (starts, positions), or a boolean mask."""
    if callable(rows):
        function: Callable[[int], Iterable[int]] = rows
        if n is None:
            reads = FunctionReads(function)
            for i in range(8):  # so that an invalid function fails where it is defined
                reads.sources(i)
            return reads
        return Table.of([list(function(i)) for i in range(require_length(n, MOST_READS))])
    if isinstance(rows, tuple) and len(rows) == 2:
        table = _from_compressed(*rows)
    else:
        table = _from_mask(np.asarray(rows))
    if n is not None and require_length(n) != table.limit:
        raise PatternError(f"expected {require_length(n):,} rows, got {table.limit:,}: leave n out, or give as many.")
    return table


def _from_compressed(starts: npt.ArrayLike, positions: npt.ArrayLike) -> Table:
    begin, columns = np.asarray(starts), np.asarray(positions)
    if begin.ndim != 1 or columns.ndim != 1 or len(begin) < 2 or begin.dtype.kind not in "iu":
        raise PatternError(
            "expected compressed rows (starts, positions): one-dimensional integers, starts one longer than there are "
            f"rows, got shapes {begin.shape} and {columns.shape}."
        )
    if begin[0] != 0 or begin[-1] != len(columns) or np.any(np.diff(begin.astype(np.int64)) < 0):
        raise PatternError(f"expected starts to grow from 0 to {len(columns)}, the number of positions.")
    return Table.of(np.split(columns, begin[1:-1]))


def _from_mask(mask: npt.NDArray[np.generic]) -> Table:
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or mask.dtype != np.bool_:
        raise PatternError(
            "expected a function of i, compressed rows (starts, positions), or a boolean mask of shape (n, n), "
            f"got {mask.dtype} of shape {mask.shape}."
        )
    reader, source = np.nonzero(np.triu(mask, 1))
    if len(reader):
        raise PatternError(
            f"expected a causal mask, got True at row {reader[0]}, column {source[0]}: a token reads earlier ones only."
        )
    return Table.of([np.flatnonzero(row[:i]) for i, row in enumerate(mask)])  # the diagonal is always A's


def _checked(row: npt.ArrayLike, i: int) -> Integers:
    """Positions of one row, ascending and distinct."""
    values = np.asarray(row)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise PatternError(f"expected the positions that token {i} reads, as a list of integers, got {row!r:.60}.")
    if values.size == 0:
        return np.empty(0, dtype=np.int64)
    positions = np.unique(values.astype(np.int64))
    wrong = positions[(positions < 0) | (positions >= i)]
    if len(wrong):
        raise PatternError(
            f"token {i} reads earlier tokens only: expected positions from 0 to {i - 1}, got {wrong[0]}."
        )
    return positions
