"""Tokenize texts into a corpus on disk, in one pass that can be killed at any moment and resumed after the last source.

The work is done in a folder beside `out` with the suffix `.partial`, which is renamed to `out` when it is complete, so
`out` is complete or absent. `plan.json` in that folder records the request and the sources; tokens are appended to the
split files and flushed before `progress.json` records their length, after a source. A later call truncates the files to
that length, verifies them, and continues with the next source. The result does not depend on when or how often that
happened.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np

from resolvent.files import explain_full_disk, fsync_folder, locked
from resolvent.text.corpus import PARTIAL, SIDECAR, Corpus
from resolvent.text.files import BLOCK, TextError, append, blocks, write_json
from resolvent.text.ids import Ids, token_dtype
from resolvent.text.info import (
    SPLITS,
    CorpusInfo,
    PreparePlan,
    PrepareProgress,
    PrepareSettings,
    SplitInfo,
    SplitState,
    TokenizerInfo,
    read_if_sound,
)
from resolvent.text.reading import Piece, ReadOptions, pieces
from resolvent.text.request import OnProgress, TextRequest, TextSources, fraction_done
from resolvent.text.sources import Source, unchanged
from resolvent.text.tokenizer import TRAINED, Tokenizer, tokenizer, tokenizer_info, trained_size
from resolvent.text.tokenizer_file import FILE, FileTokenizer
from resolvent.text.train_tokenizer import check_size, train_on

SAVE_INTERVAL = 2.0  # seconds between saves: of many small sources, not each is saved
_PLAN, _PROGRESS = "plan.json", "progress.json"
OnMessage = Callable[[str], None]


def prepare(
    sources: TextSources,
    out: str | Path,
    tokenizer: str | Path = "gpt2",
    *,
    field: str = "text",
    errors: str = "strict",
    held_out: float | None = None,
    on_progress: OnProgress = lambda *_: None,
    on_message: OnMessage = lambda _: None,
) -> Corpus:
    """Tokenize a named corpus, or files and folders, into the folder `out`.

    If interrupted, the same call resumes; if the corpus is complete, it is opened.

    Args:
        sources: `"wikitext2"`, `"sotu"`, `"shakespeare"`, `"openwebtext"` or `"python"`, or files and folders. What a
            document is and how documents are split: see `resolvent.text.sources`.
        out: The folder of the corpus, new or empty.
        tokenizer: `"gpt2"`, `"bytes"`, or the path of a `tokenizer.json`, of which the corpus keeps a copy; or
            `"bpe:1024"`, a byte-level BPE of so many tokens that is trained on what is not held out.
        field: The field of jsonl records, or the column of parquet files, that holds the text.
        errors: `"strict"` raises an error for text that is not valid UTF-8; `"replace"` inserts U+FFFD and counts the
            replacements.
        held_out: The share of validation, and of test. Default: 0.05; 0.0005 for openwebtext.
        on_progress: Called with the current stage and the fraction of it that is done.
        on_message: Called with messages about resuming and starting over.
    """
    out = Path(out)
    if out.is_symlink() or not out.name.strip("."):
        out = out.resolve()
    texts = TextRequest.parse(sources, ReadOptions(field, errors), held_out)
    size = trained_size(tokenizer)
    if size is not None:
        check_size(size)
    given = _Request(texts, tokenizer, tokenizer_info(tokenizer)) if size is None else None
    if (out / SIDECAR).exists():
        return _open_finished(out, given or _kept(out, texts, size))
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise TextError(f"{out} is not empty: expected a new or empty folder. Choose another --out.")
    files = texts.sources()
    partial = out.with_name(out.name + PARTIAL)
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial):
        if (out / SIDECAR).exists():  # written by another process in the meantime
            return _open_finished(out, given or _kept(out, texts, size))
        request = given or _trained(partial, texts, files, size, on_progress, on_message)
        plan = _load_plan(partial, request, files, on_progress, on_message)
        if not (partial / SIDECAR).exists():
            planned = [file.with_info(info) for file, info in zip(files, plan.sources, strict=True)]
            _tokenize(partial, request, planned, plan, on_progress, on_message)
        for name in (_PLAN, _PROGRESS):
            (partial / name).unlink(missing_ok=True)
        fsync_folder(partial)
        partial.replace(out)
    fsync_folder(out.parent)
    return Corpus.open(out)


@final
@dataclass(frozen=True)
class _Request:
    """What was asked for. Two requests with equal settings and sources give the same corpus, bit for bit."""

    texts: TextRequest
    tokenizer: str | Path
    identity: TokenizerInfo
    trained: int | None = None

    def settings(self) -> PrepareSettings:
        texts, options = self.texts, self.texts.options
        tokenizer = f"{self.identity.name}:{self.identity.hash}"
        return PrepareSettings(
            texts.corpus, texts.package, tokenizer, options.field, options.errors, options.held_out, self.trained
        )

    def differs(self, plan: PreparePlan) -> str | None:
        """How the settings of a plan differ from this request; None if they do not."""
        expected, recorded = asdict(self.settings()), asdict(plan.settings)
        differences = [f"{key} {str(recorded[key])[:16]}, not {str(expected[key])[:16]}"
                       for key in expected if recorded[key] != expected[key]]  # fmt: skip
        return f"was prepared with other settings: {'; '.join(differences)}" if differences else None

    def is_stale(self, plan: PreparePlan, since: float, files: Sequence[Source], on_progress: OnProgress) -> str | None:
        """Whether the texts have changed since then. They are read again unless names, sizes and times rule it out."""
        if unchanged(files, plan.sources, since):
            return None
        surveyed, _ = self.texts.survey(files, on_progress)
        return None if tuple(s.info for s in surveyed) == plan.sources else "was prepared from other texts"


def _kept(out: Path, texts: TextRequest, size: int | None) -> _Request:
    """A request for a tokenizer that is trained, where it was trained before: it is kept with the corpus."""
    info = Corpus.open(out).info
    if info.plan.settings.trained != size:
        raise TextError(
            f"{out} was prepared with another tokenizer, {info.tokenizer.name}, not {TRAINED}{size}. Choose another "
            "--out, or delete the folder to prepare it again."
        )
    return _Request(texts, out / FILE, tokenizer_info(out / FILE), size)


def _trained(
    partial: Path, texts: TextRequest, files: Sequence[Source], size: int | None, on_progress: OnProgress,
    on_message: OnMessage,
) -> _Request:  # fmt: skip
    """A request with a tokenizer that is trained now. The same texts give the same one: what is there is resumed."""
    assert size is not None
    trained = train_on(texts, files, partial / FILE, size, on_progress)
    if trained.vocab_size < size:
        on_message(f"the text has no more pairs to merge: a vocabulary of {trained.vocab_size:,}, not {size:,} tokens.")
    return _Request(texts, partial / FILE, tokenizer_info(partial / FILE), size)


def _open_finished(out: Path, request: _Request) -> Corpus:
    """A finished corpus, if it is the one requested. A named corpus is not downloaded again to compare it."""
    corpus, since = Corpus.open(out), (out / SIDECAR).stat().st_mtime
    problem = request.differs(corpus.info.plan)
    if problem is None and request.texts.is_local:
        problem = request.is_stale(corpus.info.plan, since, request.texts.sources(), lambda *_: None)
    if problem is not None:
        raise TextError(f"{out} {problem}. Choose another --out, or delete the folder to prepare it again.")
    return corpus


def _load_plan(
    partial: Path, request: _Request, files: Sequence[Source], on_progress: OnProgress, on_message: OnMessage
) -> PreparePlan:
    """The plan of an earlier process, if it matches the request; otherwise a new one, and everything starts over."""
    for name in (SIDECAR, _PLAN):
        plan = read_if_sound(partial / name, PreparePlan.read)
        if plan is not None:
            since = (partial / name).stat().st_mtime
            problem = request.differs(plan) or request.is_stale(plan, since, files, on_progress)
            if problem is None:
                return plan
            on_message(f"{partial} {problem}: starting over.")
            break
        (partial / name).unlink(missing_ok=True)
    for name in (SIDECAR, _PROGRESS, _PLAN):
        (partial / name).unlink(missing_ok=True)
    now = time.time()
    surveyed, rule = request.texts.survey(files, on_progress)
    plan = PreparePlan(request.settings(), rule, tuple(source.info for source in surveyed))
    write_json(partial / _PLAN, plan.to_dict(), now)
    return plan


def _tokenize(
    partial: Path,
    request: _Request,
    sources: Sequence[Source],
    plan: PreparePlan,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> None:
    """Write everything in the folder, starting from wherever an earlier process stopped."""
    encoder = _load_tokenizer(request, partial, on_message)
    bins, first, replaced = _resume(partial, request.identity, on_message)
    saved, done = time.monotonic(), fraction_done(sources)
    with closing(bins):
        for i in range(first, len(sources)):
            for piece in pieces(sources[i], request.texts.options):
                bins.add(piece, encoder.encode(piece.text))
                replaced += piece.replaced
                on_progress("tokenizing", done(i, piece.end))
            if time.monotonic() - saved >= SAVE_INTERVAL:
                write_json(partial / _PROGRESS, PrepareProgress(i + 1, replaced, bins.flush()).to_dict())
                saved = time.monotonic()
        splits = bins.finish()
    if not splits["train"].counts.tokens:
        shutil.rmtree(partial)
        count = sum(split.counts.documents for split in splits.values())
        raise TextError(
            f"nothing to train on: expected text, got {count} documents, none of them for training. Add documents, "
            "or use a smaller --held-out."
        )
    mtime = (partial / _PLAN).stat().st_mtime  # texts modified after this are other texts
    write_json(partial / SIDECAR, CorpusInfo(plan, request.identity, replaced, splits).to_dict(), mtime)


def _load_tokenizer(request: _Request, partial: Path, on_message: OnMessage) -> Tokenizer:
    """Load the tokenizer; one that came in a file is kept with the corpus."""
    encoder = tokenizer(request.tokenizer)
    if isinstance(encoder, FileTokenizer):
        encoder.save(partial)
    if not encoder.lossless:
        on_message(
            f"{request.tokenizer} does not keep every text as it is (case, spaces or unknown characters): bits per "
            "byte count the bytes of the text before it was tokenized."
        )
    return encoder


def _resume(partial: Path, tokenizer: TokenizerInfo, on_message: OnMessage) -> tuple[_Bins, int, int]:
    """The token files, the sources that are done, and the characters replaced in them."""
    progress = read_if_sound(partial / _PROGRESS, PrepareProgress.read)
    if progress is not None:
        try:
            bins = _Bins(partial, tokenizer, progress.splits)
        except TextError as error:
            on_message(f"{error}: starting over.")
        else:
            tokens = sum(state.tokens for state in progress.splits.values())
            on_message(f"resuming after {tokens:,} tokens.")
            return bins, progress.sources, progress.replaced
    return _Bins(partial, tokenizer), 0, 0


@final
class _Bins:
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

    def close(self) -> None:
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
        """Write everything to disk and return the state from which `_Bins` can resume."""
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
