"""A prepared corpus on disk: a file of token ids for each split, and `corpus.json`, which describes them.

Ids have 16 bits, or 32 where the vocabulary needs them. A tokenizer that came in a file is kept as `tokenizer.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from resolvent.errors import closest, shortened
from resolvent.text.fetch import fingerprint
from resolvent.text.files import TextError, sha256_of
from resolvent.text.ids import Ids, token_dtype
from resolvent.text.info import FORMAT, SPLIT_RULES, VERSION, CorpusInfo, JsonObject, SplitCounts
from resolvent.text.tokenizer import Tokenizer, stored_tokenizer, tokenizer_info
from resolvent.untrusted import read

SIDECAR = "corpus.json"
PARTIAL = ".partial"  # suffix of the folder of an unfinished corpus
_AGAIN = "Delete the folder and prepare it again."


@final
@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: `open` checks it, `split` returns the tokens of a split."""

    folder: Path
    info: CorpusInfo

    @classmethod
    def open(
        cls, folder: str | Path, tokenizer: str | Path | Tokenizer | None = None, *, hashes: bool = False
    ) -> Corpus:
        """Open the corpus in a folder after checking that all files exist and have the right size.

        Args:
            folder: The folder that `prepare` wrote.
            tokenizer: Raise an error unless the tokens are this tokenizer's.
            hashes: Read every byte and compare the sha256 of each file.
        """
        folder = Path(folder)
        info = _read_sidecar(folder)
        for name, split in info.splits.items():
            path, dtype = folder / f"{name}.bin", token_dtype(info.tokenizer.vocab_size)
            _check_file(path, split.counts.tokens, dtype.itemsize, split.sha256 if hashes else None)
        if tokenizer is not None:
            expected = tokenizer_info(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
            if (expected.name, expected.hash) != (info.tokenizer.name, info.tokenizer.hash):
                raise TextError(
                    f"expected tokens of '{expected.name}' ({expected.hash[:8]}…) in {folder}, got tokens of "
                    f"'{info.tokenizer.name}' ({info.tokenizer.hash[:8]}…): use that tokenizer, or prepare the text "
                    f"again with --tokenizer {expected.name}."
                )
        if not any(split.counts.tokens for split in info.splits.values()):
            raise TextError(f"{folder} is empty: none of its splits has a token. {_AGAIN}")
        return cls(folder, info)

    @property
    def counts(self) -> dict[str, SplitCounts]:
        """Sizes of each split."""
        return {name: split.counts for name, split in self.info.splits.items()}

    @property
    def fingerprint(self) -> str:
        """A sha256 of the names and contents of the texts: two corpora of the same texts have the same one."""
        return fingerprint({source.name: source.sha256 for source in self.info.plan.sources})

    @property
    def tokenizer(self) -> str:
        """The name of the tokenizer."""
        return self.info.tokenizer.name

    @property
    def vocab_size(self) -> int:
        return self.info.tokenizer.vocab_size

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer that the tokens are of."""
        return stored_tokenizer(self.tokenizer, self.folder)

    def split(self, name: str) -> Ids:
        """The tokens of a split, shape (tokens,), memory-mapped read-only."""
        if name not in self.counts:
            raise TextError(
                f"{self.folder} has no split '{name}': expected {', '.join(self.counts)}.{closest(name, self.counts)}"
            )
        if not self.counts[name].tokens:
            raise TextError(
                f"the split '{name}' of {self.folder} is empty: too few documents for the held-out share; "
                "prepare again with another --held-out."
            )
        return np.memmap(self.folder / f"{name}.bin", token_dtype(self.vocab_size), "r")

    def to_dict(self) -> dict[str, object]:
        """The folder, the fingerprint of the texts, and the content of `corpus.json`."""
        return {"folder": str(self.folder), "fingerprint": self.fingerprint, **self.info.to_dict()}

    def __str__(self) -> str:
        plan, files = self.info.plan, len(self.info.plan.sources)
        count = f"{files:,} file{'s' * (files != 1)}"
        package = f"{plan.settings.package}, " if plan.settings.package else ""
        sources = plan.settings.corpus or count
        lines = [
            f"{sources} as {self.tokenizer} tokens (vocabulary of {self.vocab_size:,}), {SPLIT_RULES[plan.rule]}",
            f"{'split':10} {'documents':>11} {'lines':>13} {'bytes':>16} {'tokens':>15} {'bytes/token':>12}",
        ]
        for name, c in self.counts.items():
            ratio = f"{c.bytes / c.tokens:.2f}" if c.tokens else ""
            lines.append(f"{name:10} {c.documents:>11,} {c.lines:>13,} {c.bytes:>16,} {c.tokens:>15,} {ratio:>12}")
        lines.append(f"texts: {package}{count}, fingerprint {self.fingerprint[:16]}")
        if self.info.replaced:
            lines.append(f"{self.info.replaced:,} characters were not valid UTF-8 and were replaced by U+FFFD")
        return "\n".join(lines)


def _read_sidecar(folder: Path) -> CorpusInfo:
    path = folder / SIDECAR
    if not path.is_file():
        unfinished = folder.with_name(folder.name + PARTIAL).is_dir()
        hint = (
            "it is not finished: run `resolvent data prepare` again" if unfinished else "see `resolvent data prepare`"
        )
        raise TextError(f"there is no corpus in {folder}: expected a file {SIDECAR}; {hint}.")
    try:
        content = read(path)
    except ValueError as error:
        raise TextError(f"{path} is damaged: {error} {_AGAIN}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TextError(f"{path} is not a corpus: expected format '{FORMAT}'.")
    if content.get("version") != VERSION or content["version"] is True:
        raise TextError(
            f"{path} has version {shortened(content.get('version'))}, and this release reads {VERSION}. {_AGAIN}"
        )
    try:
        return CorpusInfo.read(JsonObject(content))
    except TextError as error:
        raise TextError(f"{path} is damaged: {error} {_AGAIN}") from error


def _check_file(path: Path, tokens: int, itemsize: int, sha256: str | None) -> None:
    if not path.is_file():
        raise TextError(f"{path} is missing: expected {tokens:,} tokens. {_AGAIN}")
    size = path.stat().st_size
    if size != itemsize * tokens:
        problem = "truncated" if size < itemsize * tokens else "damaged"
        raise TextError(f"{path} is {problem}: expected {itemsize * tokens:,} bytes, got {size:,}. {_AGAIN}")
    if sha256 is not None and (actual := sha256_of(path)) != sha256:
        raise TextError(f"{path} is damaged: expected sha256 {sha256[:16]}…, got {actual[:16]}…. {_AGAIN}")
