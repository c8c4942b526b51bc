"""A corpus on disk: opened if it is intact; otherwise an error gives the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resolvent.text import ByteTokenizer, Corpus, SplitCounts, TextError, prepare

TEXTS = {"train": "Tom\nJerry\n", "validation": "é", "test": "end"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, text in TEXTS.items():
        (tmp_path / f"{split}.txt").write_text(text)
    prepare(tmp_path, tmp_path / "out", "bytes")
    return tmp_path / "out"


def test_tokens_are_mapped(folder: Path) -> None:
    corpus = Corpus.open(folder, "bytes", hashes=True)
    assert Corpus.open(folder, ByteTokenizer()).tokenizer == "bytes"
    for split, text in TEXTS.items():
        tokens = corpus.split(split)
        assert isinstance(tokens, np.memmap)
        assert not tokens.flags.writeable
        assert tokens.dtype == np.uint16
        assert tokens.tolist() == list(text.encode())
    assert corpus.counts["train"] == SplitCounts(tokens=10, documents=1, bytes=10, lines=2)
    assert corpus.counts["validation"] == SplitCounts(tokens=2, documents=1, bytes=2, lines=0)
    assert corpus.vocab_size == 257
    content = json.loads((folder / "corpus.json").read_text())
    assert [source["bytes"] for source in content["sources"]] == [3, 10, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.json", "test.bin", "train.bin", "validation.bin"]


def edit(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / "corpus.json").read_text()) | changes
        (folder / "corpus.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return apply


def write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "corpus.json").unlink(), r"no corpus in .*: expected a file corpus\.json; see `resolvent data"),
    (lambda f: f.rename(f.with_name("out.partial")), "no corpus in .*not finished: run `resolvent data prepare` again"),
    (write("corpus.json", b"{"), r"corpus\.json is damaged: expected JSON, got .*Delete the folder"),
    (edit(format="other"), "is not a corpus: expected format 'resolvent-corpus'"),
    (edit(version=2), "has version 2, and this release reads 1"),
    (edit(splits={}), "damaged: expected splits train, validation, test, got none"),
    (edit(splits=None), "damaged: expected an object for splits, got nothing"),
    (edit(rule="other"), "damaged: expected rule kept, tail, files, names, documents, got 'other'"),
    (edit(tokenizer={}), r"damaged: expected a string for tokenizer\.name, got nothing\. Delete"),
    (lambda f: (f / "test.bin").unlink(), r"test\.bin is missing: expected 3 tokens"),
    (write("train.bin", bytes(18)), r"train\.bin is truncated: expected 20 bytes, got 18\. Delete"),
    (write("train.bin", bytes(22)), r"train\.bin is damaged: expected 20 bytes, got 22\. Delete"),
    (write("train.bin", bytes(20)), r"train\.bin is damaged: expected sha256 \w{16}…, got \w{16}…\. Delete"),
]


def test_damage_is_named(folder: Path, tmp_path: Path) -> None:
    for number, (spoil, message) in enumerate(DAMAGES):
        copy = Path(shutil.copytree(folder, tmp_path / f"damaged{number}" / "out"))
        spoil(copy)
        with pytest.raises(TextError, match=message):
            Corpus.open(copy, hashes=True)


def test_tokens_of_another_tokenizer(folder: Path) -> None:
    with pytest.raises(
        TextError, match=r"expected tokens of 'gpt2' \(.*\) in .*out, got tokens of 'bytes' \(.*--tokenizer gpt2"
    ):
        Corpus.open(folder, "gpt2")
    other = json.loads((folder / "corpus.json").read_text())["tokenizer"] | {"hash": "0" * 64}
    edit(tokenizer=other)(folder)
    with pytest.raises(TextError, match=r"expected tokens of 'bytes' \(.*, got tokens of 'bytes' \(00000000…\)"):
        Corpus.open(folder, "bytes")
    with pytest.raises(TextError, match="unknown tokenizer 'byte'"):
        Corpus.open(folder, "byte")


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n" * 9)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", "bytes", held_out=0)
    with pytest.raises(TextError, match=r"has no split 'valid': expected train, validation, test\. Did you mean"):
        corpus.split("valid")
    with pytest.raises(TextError, match=r"the split 'test' of .*out is empty: .* another --held-out"):
        corpus.split("test")
