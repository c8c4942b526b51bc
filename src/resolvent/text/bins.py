"""The token files of a corpus while they are written: appended to, counted, and truncated to the last good state."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import final

import numpy as np

from resolvent.files import explain_full_disk
from resolvent.text.files import BLOCK, TextError, append, blocks
from resolvent.text.ids import Ids, token_dtype
from resolvent.text.info import SPLITS, SplitInfo, SplitState, TokenizerInfo
from resolvent.text.reading import Piece


@final
class Bins:
    """One token file per split. Documents are separated by the end-of-text token: it precedes each but the first."""

    def __init__(self, folder: Path, tokenizer: TokenizerInfo, state: dict[str, SplitState] | None = None) -> None:
        """Resume from a state, or start with empty files. Raises `TextError` if the files do not match the state."""
        self._paths = {split: folder / f"{split}.bin" for split in SPLITS}
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._separator = np.array([tokenizer.end_of_text], dtype=self._dtype)
        self._pending: dict[str, list[Ids]] = {split: [] for split in SPLITS}
        self._pending_tokens = dict.fromkeys(SPLITS, 0)
        self.state = state or {split: SplitState() for split in SPLITS}
        if state is not None:
            for split, path in self._paths.items():
                _restore(path, state[split], self._dtype.itemsize)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if state is None else 0)
        self._files = {split: os.open(path, flags, 0o666) for split, path in self._paths.items()}

    def __enter__(self) -> Bins:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def add(self, piece: Piece, ids: Ids) -> None:
        """Append the tokens of a piece. They are buffered until there are enough, or until `flush`."""
        state, pending = self.state[piece.split], self._pending[piece.split]
        if piece.starts_document:
            if state.documents:
                pending.append(self._separator)
                state.tokens += 1
            state.documents += 1
        pending.append(ids)
        state.tokens += len(ids)
        state.bytes += len(piece.text.encode())
        state.lines += piece.text.count("\n")
        self._pending_tokens[piece.split] += len(ids) + 1
        if self._pending_tokens[piece.split] >= BLOCK:
            self._write(piece.split)

    def flush(self) -> dict[str, SplitState]:
        """Write everything to disk and return the state from which `Bins` can resume."""
        for split, descriptor in self._files.items():
            self._write(split)
            with explain_full_disk(self._paths[split]):
                os.fsync(descriptor)
        return {split: dataclasses.replace(state) for split, state in self.state.items()}

    def finish(self) -> dict[str, SplitInfo]:
        """Flush, read the files back to verify them, and return the counts and sha256 of each split."""
        self.flush()
        splits: dict[str, SplitInfo] = {}
        for split, path in self._paths.items():
            digest, crc = hashlib.sha256(), 0
            for block in blocks(path):
                digest.update(block)
                crc = zlib.crc32(block, crc)
            if crc != self.state[split].crc:
                raise TextError(
                    f"{path} differs from what was written: check the disk, delete {path.parent} and prepare again."
                )
            splits[split] = SplitInfo(path.name, self.state[split].counts, digest.hexdigest())
        return splits

    def _write(self, split: str) -> None:
        data = b"".join(ids.astype(self._dtype, copy=False).tobytes() for ids in self._pending[split])
        with explain_full_disk(self._paths[split]):
            append(self._files[split], data)
        self.state[split].crc = zlib.crc32(data, self.state[split].crc)
        self._pending[split].clear()
        self._pending_tokens[split] = 0


def _restore(path: Path, state: SplitState, itemsize: int) -> None:
    """Truncate a token file to the length in the state, and verify its checksum."""
    length = itemsize * state.tokens
    if not path.is_file() or path.stat().st_size < length:
        raise TextError(f"{path} is shorter than expected")
    os.truncate(path, length)
    crc = 0
    for block in blocks(path):
        crc = zlib.crc32(block, crc)
    if crc != state.crc:
        raise TextError(f"{path} differs from what was written")
