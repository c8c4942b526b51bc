"""A prepared corpus on disk: a file of 16-bit token numbers for each split, and `corpus.json`, which describes them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from resolvent.patterns.errors import closest
from resolvent.text.files import TextError, sha256_of
from resolvent.text.sources import SPLITS
from resolvent.text.tokenizer import Tokenizer, kind_of

FORMAT, VERSION = "resolvent-corpus", 1
SIDECAR = "corpus.json"
PARTIAL = ".partial"  # ends the name of a folder that is not finished
DTYPE = np.dtype("<u2")
_AGAIN = "Delete the folder and prepare it again."
_RULES = {
    "kept": "splits as in the source",
    "tail": "held out: the end of each text",
    "files": "held out: files, by their hash",
    "documents": "held out: documents, by their hash",
}


@final
@dataclass(frozen=True)
class Counts:
    """What a split holds. `bytes` and `lines` (line ends) are of its text, without the tokens between documents."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    lines: int = 0


@final
@dataclass(frozen=True)
class Corpus:
    """A prepared corpus; `open` checks it, `split` gives the tokens of a part. `about` is all that the sidecar says."""

    folder: Path
    about: dict[str, Any]
    counts: dict[str, Counts]

    @classmethod
    def open(cls, folder: str | Path, tokenizer: str | Tokenizer | None = None, *, hashes: bool = False) -> Corpus:
        """The corpus in a folder, if its files are all there and as long as they should be.

        With a `tokenizer`, also whether the tokens are its; with `hashes`, also whether every byte is as it was.
        """
        folder = Path(folder)
        about = _sidecar(folder)
        try:
            counts = {
                name: Counts(**{f.name: int(split[f.name]) for f in dataclasses.fields(Counts)})
                for name, split in about["splits"].items()
            }
            wanted = {name: str(split["sha256"]) for name, split in about["splits"].items()}
            own = (str(about["tokenizer"]["name"]), str(about["tokenizer"]["hash"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TextError(f"{folder / SIDECAR} is damaged: {error!r} is missing or wrong. {_AGAIN}") from error
        for name, count in counts.items():
            _check(folder / f"{name}.bin", count.tokens, wanted[name] if hashes else None)
        if tokenizer is not None:
            other = kind_of(tokenizer) if isinstance(tokenizer, str) else tokenizer
            if (other.name, other.hash) != own:
                raise TextError(
                    f"{folder} holds tokens of '{own[0]}' ({own[1][:8]}…), not of '{other.name}' ({other.hash[:8]}…): "
                    f"use that one, or prepare the text again with --tokenizer {other.name}."
                )
        if not any(count.tokens for count in counts.values()):
            raise TextError(f"{folder} is empty: none of its splits has a token. {_AGAIN}")
        return cls(folder, about, counts)

    @property
    def tokenizer(self) -> str:
        """The name of the tokenizer whose numbers these are."""
        return str(self.about["tokenizer"]["name"])

    @property
    def vocab_size(self) -> int:
        return int(self.about["tokenizer"]["vocab_size"])

    def split(self, name: str) -> npt.NDArray[np.uint16]:
        """The tokens of a split, mapped from the file and not read."""
        if name not in self.counts:
            raise TextError(f"{self.folder} has no split '{name}': expected {', '.join(self.counts)}."
                            f"{closest(name, self.counts)}")  # fmt: skip
        if not self.counts[name].tokens:
            raise TextError(
                f"the split '{name}' of {self.folder} is empty: too few documents for the share that is held out; "
                "prepare again with another --held-out."
            )
        return np.memmap(self.folder / f"{name}.bin", DTYPE, "r")

    def __str__(self) -> str:
        about, tokenizer = self.about, self.about["tokenizer"]
        sources = about["settings"]["corpus"] or f"{len(about['sources']):,} file{'s' * (len(about['sources']) != 1)}"
        lines = [
            f"{sources} as {tokenizer['name']} tokens (vocabulary of {self.vocab_size:,}), {_RULES[about['rule']]}",
            f"{'split':10} {'documents':>11} {'lines':>13} {'bytes':>16} {'tokens':>15} {'bytes/token':>12}",
        ]
        for name, c in self.counts.items():
            share = f"{c.bytes / c.tokens:.2f}" if c.tokens else ""
            lines.append(f"{name:10} {c.documents:>11,} {c.lines:>13,} {c.bytes:>16,} {c.tokens:>15,} {share:>12}")
        if about["replaced"]:
            lines.append(f"{about['replaced']:,} characters were no UTF-8 and are U+FFFD")
        return "\n".join(lines)


def _sidecar(folder: Path) -> dict[str, Any]:
    path = folder / SIDECAR
    if not path.is_file():
        unfinished = folder.with_name(folder.name + PARTIAL).is_dir()
        hint = (
            "it is not finished: run `resolvent data prepare` again" if unfinished else "see `resolvent data prepare`"
        )
        raise TextError(f"there is no corpus in {folder}: expected a file {SIDECAR}; {hint}.")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TextError(f"{path} is damaged: expected JSON ({error}). {_AGAIN}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise TextError(f"{path} is no corpus: expected format '{FORMAT}'.")
    if about.get("version") != VERSION:
        raise TextError(f"{path} has version {about.get('version')!r}, and this release reads {VERSION}. {_AGAIN}")
    missing = [key for key in ("splits", "tokenizer", "sources", "settings", "rule", "replaced") if key not in about]
    if missing or sorted(about["splits"]) != sorted(SPLITS) or about["rule"] not in _RULES:
        raise TextError(f"{path} is damaged: expected splits {', '.join(SPLITS)} and what they are made of. {_AGAIN}")
    return about


def _check(path: Path, tokens: int, sha256: str | None) -> None:
    if not path.is_file():
        raise TextError(f"{path} is missing: expected {tokens:,} tokens. {_AGAIN}")
    size = path.stat().st_size
    if size != DTYPE.itemsize * tokens:
        state = "truncated" if size < DTYPE.itemsize * tokens else "damaged"
        raise TextError(f"{path} is {state}: expected {DTYPE.itemsize * tokens:,} bytes, got {size:,}. {_AGAIN}")
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise TextError(f"{path} is damaged: expected sha256 {sha256[:16]}…, got {found[:16]}…. {_AGAIN}")
