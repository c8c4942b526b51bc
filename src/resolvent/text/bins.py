"""The files of tokens while they are written: appended to, counted, and cut back to what is known to be good."""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np

from resolvent.files import room_for
from resolvent.text.corpus import DTYPE, Counts
from resolvent.text.files import BLOCK, TextError, append, blocks
from resolvent.text.reading import Piece
from resolvent.text.sources import SPLITS
from resolvent.text.tokenizer import Ids

State = dict[str, dict[str, int]]  # by split: the counts, and `crc`, a checksum of the file so far
_FIELDS = [field.name for field in fields(Counts)]


@final
class Bins:
    """One file per split. Its documents are joined by the end-of-text token: it stands before each but the first."""

    def __init__(self, folder: Path, end_of_text: int, state: State | None = None) -> None:
        """Go on from a state, or begin. Raises `TextError` where the files are not what the state says."""
        self._paths = {split: folder / f"{split}.bin" for split in SPLITS}
        self._join = np.array([end_of_text], dtype=DTYPE)
        self._pending: dict[str, list[Ids]] = {split: [] for split in SPLITS}
        self._waiting = dict.fromkeys(SPLITS, 0)
        self.state = state or {split: dict.fromkeys([*_FIELDS, "crc"], 0) for split in SPLITS}
        if state is not None:
            for split, path in self._paths.items():
                _restore(path, state[split])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if state is None else 0)
        self._files = {split: os.open(path, flags, 0o666) for split, path in self._paths.items()}

    def __enter__(self) -> Bins:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def add(self, piece: Piece, ids: Ids) -> None:
        """The tokens of a piece; they are written when there are enough, or by `flush`."""
        state, pending = self.state[piece.split], self._pending[piece.split]
        if piece.starts:
            if state["documents"]:
                pending.append(self._join)
                state["tokens"] += 1
            state["documents"] += 1
        pending.append(ids)
        state["tokens"] += len(ids)
        state["bytes"] += len(piece.text.encode())
        state["lines"] += piece.text.count("\n")
        self._waiting[piece.split] += len(ids) + 1
        if self._waiting[piece.split] >= BLOCK:
            self._write(piece.split)

    def flush(self) -> State:
        """Everything reaches the disk; the state that is good from now on."""
        for split, descriptor in self._files.items():
            self._write(split)
            with room_for(self._paths[split]):
                os.fsync(descriptor)
        return {split: dict(state) for split, state in self.state.items()}

    def finish(self) -> dict[str, dict[str, Any]]:
        """Counts and sha256 of each split, after the files were read again and found to be what was written."""
        self.flush()
        found: dict[str, dict[str, Any]] = {}
        for split, path in self._paths.items():
            digest, crc = hashlib.sha256(), 0
            for block in blocks(path):
                digest.update(block)
                crc = zlib.crc32(block, crc)
            if crc != self.state[split]["crc"]:
                raise TextError(f"{path} is not what was written: check the disk, delete {path.parent}, prepare again.")
            counts = {name: self.state[split][name] for name in _FIELDS}
            found[split] = {"file": path.name, **counts, "sha256": digest.hexdigest()}
        return found

    def _write(self, split: str) -> None:
        data = b"".join(ids.astype(DTYPE, copy=False).tobytes() for ids in self._pending[split])
        with room_for(self._paths[split]):
            append(self._files[split], data)
        self.state[split]["crc"] = zlib.crc32(data, self.state[split]["crc"])
        self._pending[split].clear()
        self._waiting[split] = 0


def _restore(path: Path, state: dict[str, int]) -> None:
    """Cut a file to what is known of it, and see that it is that."""
    length = DTYPE.itemsize * state["tokens"]
    if not path.is_file() or path.stat().st_size < length:
        raise TextError(f"{path} is shorter than it was")
    os.truncate(path, length)
    crc = 0
    for block in blocks(path):
        crc = zlib.crc32(block, crc)
    if crc != state["crc"]:
        raise TextError(f"{path} is not what was written")
