"""Text for language models: tokenizers, corpora prepared on disk, and batches of them. Knows nothing of models."""

from resolvent.files import DiskFullError
from resolvent.text.batches import TextBatches, Windows
from resolvent.text.corpus import Corpus, Counts
from resolvent.text.files import TextError
from resolvent.text.prepare import prepare
from resolvent.text.tokenizer import TOKENIZERS, ByteTokenizer, GPT2Tokenizer, Tokenizer, tokenizer

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "Corpus",
    "Counts",
    "DiskFullError",
    "GPT2Tokenizer",
    "TextBatches",
    "TextError",
    "Tokenizer",
    "Windows",
    "prepare",
    "tokenizer",
]
