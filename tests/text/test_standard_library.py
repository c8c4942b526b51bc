"""Python's own library as a text: which files, which split, which fingerprint; and a BPE trained on the way."""

import hashlib
import sys
from pathlib import Path

import pytest

from resolvent.text import Corpus, TextError, prepare, request, tokenizer
from resolvent.text.fetch import fingerprint
from resolvent.text.request import standard_library as files_of
from resolvent.text.sources import split_of_hash

FILES = {
    "os.py": "import sys\n",
    "json/decoder.py": "class Decoder:\n    pass\n",
    "json/__init__.py": "",
    "abc.py": "def f():\n    return 1\n",
    "notes.txt": "not source",
    "test/test_os.py": "x",
    "unittest/tests/test_case.py": "x",
    "site-packages/other.py": "x",
    "dist-packages/other.py": "x",
    "idlelib/run.py": "x",
    "encodings/cp1252.py": "x",
    "pydoc_data/topics.py": "x",
    "config-3.11-x86_64-linux-gnu/python-config.py": "x",
    "_sysconfigdata__linux_x86_64-linux-gnu.py": "x",
    "sitecustomize.py": "x",
    "__pycache__/os.py": "x",
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small one, and many modules more, so that some are held out."""
    for name, content in (FILES | {f"module{i}.py": f"value = {i}\n" * 20 for i in range(80)}).items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "lib"


@pytest.fixture
def in_use(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library) if name == "stdlib" else "")
    return library


def test_files_are_those_of_the_library_in_the_order_of_their_names(library: Path) -> None:
    names = [source.name for source in files_of(library)]
    assert names == sorted(names)
    assert [name for name in names if not name.startswith("module")] == [
        "abc.py", "json/__init__.py", "json/decoder.py", "os.py",
    ]  # fmt: skip
    with pytest.raises(TextError, match=r"has no source in .*nothing: expected .py files there"):
        files_of(library / "nothing")
    assert {"argparse.py", "json/decoder.py"} <= {source.name for source in files_of()}  # of this Python


def test_names_decide_what_is_held_out(in_use: Path, tmp_path: Path) -> None:
    corpus = prepare("python", tmp_path / "one", "bytes")
    for source in corpus.info.plan.sources:
        assert source.split == split_of_hash(hashlib.sha256(source.name.encode()).hexdigest(), 0.05)
    assert all(count.documents for count in corpus.counts.values())
    assert corpus.info.plan.rule == "names"
    before = {source.name: source.split for source in corpus.info.plan.sources}
    (in_use / "module3.py").write_text("other = 'text'\n")  # stays where it was
    (in_use / "module99.py").write_text("new = 1\n")
    after = {source.name: source.split for source in prepare("python", tmp_path / "two", "bytes").info.plan.sources}
    assert before.items() <= after.items()


def test_the_fingerprint_is_of_names_and_contents(
    in_use: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare("python", tmp_path / "one", "bytes")
    digests = {name: hashlib.sha256((in_use / name).read_bytes()).hexdigest()
               for name in (source.name for source in files_of(in_use))}  # fmt: skip
    assert first.fingerprint == fingerprint(digests)
    release = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    assert f"texts: {release}, 84 files, fingerprint {first.fingerprint[:16]}" in str(first)
    (in_use / "os.py").write_text("import io\n")
    with pytest.raises(TextError, match="was prepared from other texts"):
        prepare("python", tmp_path / "one", "bytes")
    assert prepare("python", tmp_path / "changed", "bytes").fingerprint != first.fingerprint
    (in_use / "os.py").rename(in_use / "posix.py")
    assert prepare("python", tmp_path / "renamed", "bytes").fingerprint != first.fingerprint
    monkeypatch.setattr(request.platform, "python_version", lambda: "3.99.0")
    with pytest.raises(TextError, match=r"other settings: package Python .*, not Python 3.99.0"):
        prepare("python", tmp_path / "one", "bytes")


# A BPE trained on the way


def test_a_tokenizer_is_trained_on_what_is_not_held_out(tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    for name, text in (
        ("train", "the cat sat on the mat, and some of those who saw it ran away quickly\n" * 50),
        ("validation", "zebra " * 200),
        ("test", "quagga " * 200),
    ):
        (tmp_path / "split" / f"{name}.txt").write_text(text)
    stages: list[str] = []

    def prepared(out: str) -> Corpus:
        stages.clear()
        return prepare(tmp_path / "split", tmp_path / out, "bpe:280", on_progress=lambda stage, _: stages.append(stage))

    corpus = prepared("out")
    assert corpus.vocab_size == 280
    assert {"merging", "tokenizing"} <= set(stages)
    kept = corpus.load_tokenizer()
    assert len(kept.encode("zebra")) == 5  # letter by letter
    assert kept.decode(corpus.split("validation")) == "zebra " * 200
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert (prepared("out").to_dict(), stages) == (corpus.to_dict(), [])  # finished: nothing is trained again
    assert prepared("two").info.tokenizer == corpus.info.tokenizer
    for other in ("bpe:281", "bytes"):
        with pytest.raises(TextError, match="was prepared with"):
            prepare(tmp_path / "split", tmp_path / "out", other)
    (tmp_path / "split" / "train.txt").write_text("the dog sat on the log\n" * 50)
    with pytest.raises(TextError, match="was prepared from other texts"):
        prepared("out")


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 100)
    for name, message in (
        ("bpe:100", "expected a vocabulary of 257 .* tokens, got 100"),
        ("bpe:many", "expected bpe: and the tokens of the vocabulary, such as bpe:1024, got 'bpe:many'"),
    ):
        with pytest.raises(TextError, match=message):
            prepare(tmp_path / "a.txt", tmp_path / "out", name)
        assert not (tmp_path / "out.partial").exists()
    with pytest.raises(TextError, match="'bpe:1024' is trained when texts are prepared"):
        tokenizer("bpe:1024")


def test_a_short_text_has_fewer_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab " * 100)
    messages: list[str] = []
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", "bpe:400", on_message=messages.append)
    assert corpus.vocab_size < 400
    assert messages == [f"the text has no more pairs to merge: a vocabulary of {corpus.vocab_size}, not 400 tokens."]
