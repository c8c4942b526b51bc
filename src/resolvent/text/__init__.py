"""Text for language models: tokenizers, corpora prepared on disk, and batches of them. Knows nothing of models."""

from resolvent.text.batches import TextBatches, Windows
from resolvent.text.files import DiskFullError, TextError
from resolvent.text.tokenizer import TOKENIZERS, ByteTokenizer, GPT2Tokenizer, Tokenizer, tokenizer

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "DiskFullError",
    "GPT2Tokenizer",
    "TextBatches",
    "TextError",
    "Tokenizer",
    "Windows",
    "tokenizer",
]
