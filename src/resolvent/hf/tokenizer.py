"""Our tokenizers as those of transformers, to save beside a model: the same tokens for every text."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from resolvent.fields import as_mapping
from resolvent.text.tokenizer import END_OF_TEXT, gpt2_files, printable_bytes, tokenizer_class
from resolvent.untrusted import read as read_json


def fast_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """`bytes` or `gpt2`. The end of a text also pads, which the mask leaves out; in a text it is plain characters.

    >>> fast_tokenizer("bytes")("to be").input_ids
    [116, 111, 32, 98, 101]
    """
    known = tokenizer_class(name)
    tokens = Tokenizer(models.BPE(*_gpt2() if name == "gpt2" else (printable_bytes(), [])))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt2")
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens([END_OF_TEXT])
    if tokens.token_to_id(END_OF_TEXT) != known.end_of_text or tokens.get_vocab_size() != known.vocab_size:
        raise ValueError(f"expected {known.vocab_size} tokens of '{name}', got {tokens.get_vocab_size()}.")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=END_OF_TEXT,
        padding_side="left", split_special_tokens=True,
    )  # fmt: skip


def _gpt2() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """GPT-2's tokens and merges, from the files published with it."""
    folder = gpt2_files()
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    tokens = as_mapping(read_json(folder / "encoder.json"), "GPT-2's list of tokens")
    return {str(word): int(str(i)) for word, i in tokens.items()}, [tuple(line.split(" ")) for line in lines]  # type: ignore[misc]
