"""Text for language models: tokenizers, prepared corpora on disk, and their batches. Independent of models."""

from resolvent.files import DiskFullError
from resolvent.text.batches import LastTargets, TextBatches, Windows
from resolvent.text.corpus import Corpus
from resolvent.text.files import TextError
from resolvent.text.info import CorpusInfo, SplitCounts
from resolvent.text.prepare import prepare
from resolvent.text.reach import Reach, reach
from resolvent.text.tokenizer import TOKENIZERS, ByteTokenizer, GPT2Tokenizer, Tokenizer, stored_tokenizer, tokenizer
from resolvent.text.tokenizer_file import FileTokenizer
from resolvent.text.train_tokenizer import train_tokenizer

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "Corpus",
    "CorpusInfo",
    "DiskFullError",
    "FileTokenizer",
    "GPT2Tokenizer",
    "LastTargets",
    "Reach",
    "SplitCounts",
    "TextBatches",
    "TextError",
    "Tokenizer",
    "Windows",
    "prepare",
    "reach",
    "stored_tokenizer",
    "tokenizer",
    "train_tokenizer",
]
