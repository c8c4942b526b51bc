"""Token ids: their types, and checks that tokenizers share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from resolvent.text.files import TextError

Ids = npt.NDArray[np.uint16 | np.uint32]


def token_dtype(vocab_size: int) -> np.dtype[np.uint16 | np.uint32]:
    """In files and in memory: 16 bits where they suffice."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def utf8(text: str) -> bytes:
    """The bytes of a text. Half of a surrogate pair, which has none, raises an error."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"expected text that can be encoded as UTF-8, got half of a surrogate pair at character {error.start} "
            f"(U+{ord(text[error.start]):04X}). Replace it, or use --errors replace."
        ) from error


def checked(ids: npt.ArrayLike, name: str, vocab_size: int) -> npt.NDArray[np.integer]:
    """A row of ids, each of the vocabulary of the tokenizer of this name."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TextError(f"expected a 1-D array of token ids, got shape {array.shape} of {array.dtype}.")
    if array.size and not (array.min() >= 0 and array.max() < vocab_size):
        raise TextError(
            f"expected tokens of '{name}', from 0 to {vocab_size - 1:,}, got {array.min()} to {array.max()}."
        )
    return array
