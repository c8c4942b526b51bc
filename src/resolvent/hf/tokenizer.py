"""Our tokenizers as those of transformers, to save beside a model: the same tokens for every text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from resolvent.fields import as_mapping
from resolvent.text.tokenizer import END_OF_TEXT, TOKENIZERS, Tokenizer, gpt2_files, printable_bytes, tokenizer_info
from resolvent.text.tokenizer_file import FILE, FileTokenizer
from resolvent.untrusted import read as read_json


def fast_tokenizer(given: str | Path | Tokenizer) -> PreTrainedTokenizerFast:
    """`bytes`, `gpt2`, or that in a `tokenizer.json`. The end of a text also pads, which the mask leaves out.

    Written in a text, the name of that token is plain characters, as everywhere here.

    >>> fast_tokenizer("bytes")("to be").input_ids
    [116, 111, 32, 98, 101]
    """
    name = given if isinstance(given, str | Path) else given.path if isinstance(given, FileTokenizer) else given.name
    known = tokenizer_info(name)
    library = _by_name(known.name) if known.name in TOKENIZERS else Library.from_file(str(_file(Path(name))))
    if library.get_vocab_size() != known.vocab_size:
        raise ValueError(f"expected {known.vocab_size:,} tokens of {name}, got {library.get_vocab_size():,}.")
    end = library.id_to_token(known.end_of_text)
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        eos_token=end,
        bos_token=end,
        pad_token=end,
        padding_side="left",
        split_special_tokens=True,
    )


def _by_name(name: str) -> Library:
    """Merges of bytes, which `bytes` has none of."""
    tokens, merges = _gpt2() if name == "gpt2" else (printable_bytes(), [])
    library = Library(models.BPE(tokens, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt2")
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([END_OF_TEXT])
    return library


def _gpt2() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """GPT-2's tokens and merges, from the files published with it."""
    folder = gpt2_files()
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    tokens = as_mapping(read_json(folder / "encoder.json"), "GPT-2's list of tokens")
    return {word: int(str(i)) for word, i in tokens.items()}, [(a, b) for a, b in (line.split(" ") for line in lines)]


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path
