"""Tokenizers in files: any tokenizer.json, trained here or elsewhere; kept with corpora; bad files are named."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.text import Corpus, FileTokenizer, TextError, prepare, tokenizer, train_tokenizer
from resolvent.text.tokenizer_file import ENDS

TEXT = "the cat sat on the mat, and the dog saw it's naïve 日本語 🙂\n" * 40
SPECIAL = "<|endoftext|>"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "README.md"  # any UTF-8, whatever its suffix
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(texts: Path) -> FileTokenizer:
    return train_tokenizer(texts, texts.with_name("tokenizer.json"), 300)


def library(path: Path, model: dict[str, Any], **more: Any) -> Path:
    """A file as other programs write them."""
    end = {"id": 1, "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False}  # fmt: skip
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [end], "model": model} | more))
    return path


words = {"type": "WordLevel", "vocab": {"[UNK]": 0, "</s>": 1, "the": 2, "cat": 3}, "unk_token": "[UNK]"}


@settings(max_examples=100, deadline=None)
@given(text=st.text() | st.sampled_from(["", SPECIAL, f"a{SPECIAL}b", "\r\n \t", TEXT, "x" * 5000, " " * 20_000]))
def test_every_text_comes_back(trained: FileTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert ids.dtype == np.uint16
    assert trained.end_of_text not in ids
    assert trained.decode(ids) == text
    assert trained.lossless


def test_training_is_deterministic(texts: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_tokenizer(texts, tmp_path / name, 300)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_corpus_keeps_its_tokenizer(trained: FileTokenizer, texts: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    corpus = prepare([texts], tmp_path / "out", trained.path, on_progress=lambda stage, _: stages.append(stage))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == trained.path.read_bytes()
    assert corpus.vocab_size == trained.vocab_size
    assert corpus.info.tokenizer.hash == trained.hash
    whole = "".join(corpus.load_tokenizer().decode(corpus.split(s)) for s in ("train", "validation", "test"))
    assert whole == TEXT
    assert Corpus.open(tmp_path / "out", trained.path, hashes=True).tokenizer == trained.name
    with pytest.raises(TextError, match="expected tokens of 'bytes'"):
        Corpus.open(tmp_path / "out", "bytes")
    prepare([texts], tmp_path / "out", trained.path)  # finished
    with pytest.raises(TextError, match="was prepared with other settings: tokenizer"):
        prepare([texts], tmp_path / "out", "bytes")
    (tmp_path / "out" / "tokenizer.json").write_text(trained.path.read_text() + " ")
    with pytest.raises(TextError, match=f"is not the tokenizer of these tokens: expected {trained.name}, got "):
        corpus.load_tokenizer()
    (tmp_path / "out" / "tokenizer.json").unlink()
    with pytest.raises(TextError, match=r"the tokenizer tokenizer.json@.* is missing: expected a tokenizer.json in"):
        corpus.load_tokenizer()


def test_documents_end_with_the_file_s_own_token(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "the cat"}) + "\n" for _ in range(3)))
    path = library(tmp_path / "tokenizer.json", words, pre_tokenizer={"type": "Whitespace"})
    messages: list[str] = []
    corpus = prepare([tmp_path / "a.jsonl"], tmp_path / "out", path, held_out=0.0, on_message=messages.append)
    assert corpus.split("train").tolist() == [2, 3, 1, 2, 3, 1, 2, 3]
    assert "does not keep every text as it is" in messages[0]  # a word that it does not know is [UNK]
    assert tokenizer(tmp_path).encode("the dog </s>").tolist() == [2, 0, 0, 0, 0]  # plain characters, not an end


def test_nothing_is_added_cut_off_or_left_to_chance(trained: FileTokenizer, tmp_path: Path) -> None:
    """Whatever the file asks for: models see what is in the text."""
    path = library(
        tmp_path / "t.json",
        words,
        pre_tokenizer={"type": "Whitespace"},
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "[UNK]"},
        post_processor={"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["</s>", 1]},
    )  # fmt: skip
    assert tokenizer(path).encode("the cat the cat the").tolist() == [2, 3, 2, 3, 2]
    content = json.loads(trained.path.read_text())
    content["model"]["dropout"] = 0.5
    path.write_text(json.dumps(content))
    assert tokenizer(path).encode(TEXT).tolist() == trained.encode(TEXT).tolist()
    content["model"]["continuing_subword_prefix"] = "ééé"  # longer than the tokens: the library panics
    path.write_text(json.dumps(content))
    with pytest.raises(TextError, match="is damaged, or not a tokenizer"):
        tokenizer(path)


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "</s>": 1} | {f"w{i}": i for i in range(2, 70_001)}
    path = library(tmp_path / "t.json", words | {"vocab": vocabulary}, pre_tokenizer={"type": "Whitespace"})
    (tmp_path / "a.txt").write_text("w69999 w3 w70000 " * 100)
    corpus = prepare([tmp_path / "a.txt"], tmp_path / "out", path)
    assert corpus.split("train").dtype == np.uint32
    assert corpus.split("train")[:3].tolist() == [69_999, 3, 70_000]
    assert corpus.vocab_size == 70_001


@pytest.mark.parametrize(("content", "message"), [
    (b"\xff\xfe", "is damaged, or not a tokenizer"),
    (b"[]", "is damaged, or not a tokenizer"),
    (b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}}', "Token `b` out of vocabulary"),
    (b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}}', "has no token that ends a text"),
    (b'{"version":"1.0","model":{"type":"BPE","vocab":{"</s>":4000000000},"merges":[]}}', "got 4,000,000,001"),
    (b"[" * 100_000, "is damaged, or not a tokenizer"),
])  # fmt: skip
def test_bad_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(TextError, match=message):
        tokenizer(tmp_path / "t.json")


def test_mistakes(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, empty = tmp_path / "t.json", tmp_path / "empty.txt"
    empty.touch()
    corpus = prepare([texts], tmp_path / "corpus", "bytes").folder
    for call, message in (
        (lambda: tokenizer("none.json"), r"cannot read .*none.json .*expected the path of a tokenizer.json"),
        (lambda: tokenizer(tmp_path), r"expected the path of a tokenizer.json, or a folder with one"),
        (lambda: train_tokenizer(corpus, out, 300), "is tokenized already: expected the texts"),
        (lambda: train_tokenizer(empty, out, 300), "nothing to train on"),
    ):
        with pytest.raises(TextError, match=message):
            call()
    assert not out.exists()
    library(out, words)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"needs the library tokenizers: pip install tokenizers"):
        train_tokenizer(texts, out, 300)
    with pytest.raises(ImportError, match=r"pip install tokenizers, or use --tokenizer bytes"):
        tokenizer(out)


def test_every_name_of_an_end_is_known(tmp_path: Path) -> None:
    for word in ENDS:
        vocabulary = {"[UNK]": 0, "</s>": 3, word: 2}
        path = library(tmp_path / "t.json", words | {"vocab": vocabulary}, added_tokens=[])
        assert tokenizer(path).end_of_text == vocabulary[next(end for end in ENDS if end in vocabulary)]
