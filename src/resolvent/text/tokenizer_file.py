"""Tokenizers in a file: a `tokenizer.json` of Hugging Face's library `tokenizers`, whoever made it.

As with the others, special tokens are not recognized in a text, and nothing is added to it, cut off, padded or left to
chance, whatever the file asks for. Which token ends a text is known by its name. The file is JSON, parsed by that
library: nothing in it can run code. Its sha256 is the tokenizer's identity; a corpus, a run and a model keep a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from resolvent.files import atomic_write
from resolvent.text.files import TextError
from resolvent.text.ids import Ids, checked, token_dtype, utf8
from resolvent.untrusted import open_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

FILE = "tokenizer.json"
MOST_BYTES = 64 << 20  # those of the largest vocabularies have a third of that
MOST_TOKENS = 1 << 20
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[EOS]", "[SEP]")
# Case, accents, several scripts, spaces of all kinds: what comes back is what the tokenizer keeps.
_PROBE = "Naïve “Café”,\tit's  TWO  spaces;\r\n 日本語 Ελληνικά 🙂\n\n    return x[0x7F] \n"


@final
class FileTokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder that has one.

    lossless  whether a text of many kinds of characters comes back as it was
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.path = path / FILE if path.is_dir() else path
        self._content = _content(self.path)
        self.hash = hashlib.sha256(self._content).hexdigest()
        self.name = f"{FILE}@{self.hash[:12]}"
        self._library = _parse(self._content, self.path)
        vocabulary: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if not 0 < self.vocab_size <= MOST_TOKENS:
            raise TextError(f"expected from 1 to {MOST_TOKENS:,} tokens in {self.path}, got {self.vocab_size:,}.")
        ends = [vocabulary[word] for word in ENDS if word in vocabulary]
        if not ends:
            raise TextError(
                f"{self.path} has no token that ends a text: expected one of {', '.join(ENDS)}. Add one to it, or "
                "train a tokenizer with 'resolvent data prepare --tokenizer bpe:4096'."
            )
        self.end_of_text = ends[0]
        self.lossless = self._keeps(_PROBE)

    def encode(self, text: str) -> Ids:
        utf8(text)
        with _explained(f"{self.path} cannot encode this text", "use another tokenizer."):
            ids = self._library.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=token_dtype(self.vocab_size))

    def decode(self, ids: npt.ArrayLike) -> str:
        row = checked(ids, self.name, self.vocab_size).tolist()
        with _explained(f"{self.path} cannot decode these tokens", "use another tokenizer."):
            text: str = self._library.decode(row, skip_special_tokens=False)
        return text

    def save(self, folder: Path) -> None:
        """Copy the file into a folder: a corpus, a run or a model."""
        with atomic_write(folder / FILE) as temporary:
            temporary.write_bytes(self._content)

    def _keeps(self, text: str) -> bool:
        try:
            return self.decode(self.encode(text)) == text
        except TextError:  # some have no token for characters that they do not know
            return False


def _content(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise TextError(
            f"cannot read {path} ({error.strerror}): expected the path of a {FILE}, or a folder with one."
        ) from None
    if len(content) > MOST_BYTES:
        raise TextError(f"{path} is not a tokenizer: expected at most {MOST_BYTES:,} bytes.")
    return content


@contextmanager
def _explained(problem: str, advice: str) -> Iterator[None]:
    """Errors of the library, which has no class for them; its panics are not even `Exception`s."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TextError(f"{problem} ({error}): {advice}") from None
        raise


def _parse(content: bytes, path: Path) -> Library:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise ImportError(
            f"{path} needs the library tokenizers: pip install tokenizers, or use --tokenizer bytes."
        ) from error
    with _explained(
        f"{path} is damaged, or not a tokenizer", f"expected a {FILE} as the library tokenizers writes it."
    ):
        library = Library.from_str(content.decode("utf-8"))
    library.encode_special_tokens = True  # as plain characters
    library.no_truncation()
    library.no_padding()
    if getattr(library.model, "dropout", None):  # which encodes a text differently each time
        library.model.dropout = None
    return library
