"""Reading: pieces join to the full text, whatever their size; errors name the position."""

import codecs
import dataclasses
import gzip
import json
import sys
import tempfile
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolvent.text import GPT2Tokenizer, TextError
from resolvent.text.reading import Piece, ReadOptions, pieces
from resolvent.text.sources import Source, find_sources, survey
from resolvent.text.tokenizer import WHITE

module = import_module("resolvent.text.reading")
law = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
REPLACE = ReadOptions(errors="replace")

# Words of at most 24 bytes and gaps of at most 12, each with a space or line end: in 64 bytes a gap always begins.
words = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Z", "Cc")), min_size=1, max_size=6),
    st.sampled_from(["it's", "!?", "1984", "\x1c", "don't\x1f", "日本語"]),
)
gaps = st.sampled_from([" ", "\n", "\n\n", " \n ", "\u3000\n", "\xa0\n", "\n\x85", "\u3000 \u3000", "\r\n", "  \t"])
prose = st.lists(st.tuples(words, gaps), max_size=60).map(lambda pairs: "".join(w + g for w, g in pairs))


def source(data: bytes, name: str = "a.txt", split: str | None = "train") -> Source:
    """A file that stays until the test ends."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (found,), _ = survey(find_sources([folder / name]), 0, lambda _: None)
    return dataclasses.replace(found, cuts=None, split=split)


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("sources")


def read(of: Source, size: int = 64, options: ReadOptions = ReadOptions()) -> list[Piece]:  # noqa: B008
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", size)
        return list(pieces(of, options))


@law
@given(text=st.one_of(st.text(), prose), size=st.integers(4, 80), packed=st.booleans())
def test_pieces_are_the_whole(text: str, size: int, packed: bool) -> None:
    of = source(text.encode(), "a.txt.gz" if packed else "a.txt")
    found = read(of, size)
    assert "".join(piece.text for piece in found) == text
    assert [piece.starts_document for piece in found] == [i == 0 for i in range(len(found))]
    assert all(0 < len(piece.text.encode()) <= size for piece in found)
    assert [piece.end for piece in found] == np.cumsum([len(piece.text.encode()) for piece in found]).tolist()


@law
@given(text=prose)
def test_tokens_of_pieces_are_tokens_of_the_whole(gpt2: GPT2Tokenizer, text: str) -> None:
    found = read(source(text.encode()))
    if text:
        ids = np.concatenate([gpt2.encode(piece.text) for piece in found])
        assert np.array_equal(ids, gpt2.encode(text))
    assert len(found) >= len(text.encode()) / 64
    for before, after in pairwise(found):  # they end where a gap begins
        assert before.text[-1] not in WHITE
        assert after.text[0] in WHITE


def test_pieces_end_at_lines() -> None:
    text = "".join(f"line {i} of the text\n" for i in range(50))
    found = read(source(text.encode()), 100)
    assert len(found) > 5
    assert all(piece.text.startswith("\nline") for piece in found[1:])


def test_a_text_is_cut_between_splits() -> None:
    of = source(b"aa bb cc dd")
    of = dataclasses.replace(of, split=None, cuts=(5, 8))
    found = read(of, 4)
    assert [(p.split, p.text, p.starts_document) for p in found] == [
        ("train", "aa", True), ("train", " bb", False), ("validation", " cc", True), ("test", " dd", True),
    ]  # fmt: skip


bits = st.sampled_from(["é".encode(), b"\xe2\x82", b"\xf0", b" a\n", b"\xef\xbf\xbd", b"\x80"])


@law
@given(data=st.one_of(st.binary(max_size=200), st.lists(bits, max_size=40).map(b"".join)), size=st.integers(4, 40))
def test_invalid_utf8_raises_with_its_position_or_is_replaced_and_counted(data: bytes, size: int) -> None:
    of, count = source(data), 0

    def counting(error: UnicodeDecodeError) -> tuple[str, int]:
        nonlocal count
        count += 1
        return "\ufffd", error.end

    codecs.register_error("counting", counting)
    whole = data.decode(errors="counting")
    found = read(of, size, options=REPLACE)
    assert "".join(piece.text for piece in found) == whole
    assert sum(piece.replaced for piece in found) == count
    try:
        data.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(TextError, match=rf"a\.txt is not valid UTF-8 at byte {error.start:,} \(.*--errors replace"):
            read(of, size)
    else:
        assert count == 0


def jsonl(*records: object, packed: bool = False) -> Source:
    data = "".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)
    return source(data.encode(errors="surrogatepass"), "a.jsonl.gz" if packed else "a.jsonl", None)


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_documents(packed: bool) -> None:
    of = jsonl(
        {"text": "one\ntwo"}, "\n", {"text": ""}, {"text": "é" * 50}, {"text": None}, {"text": "end"}, packed=packed
    )
    found = read(of)
    assert [(p.text, p.starts_document) for p in found] == [("one\ntwo", True), ("é" * 50, True), ("end", True)]
    assert read(jsonl({"body": "b"}), options=ReadOptions("body"))[0].text == "b"


def test_documents_fall_by_their_own_hash() -> None:
    documents = [f"document {i}" for i in range(300)]
    found = read(jsonl(*({"text": text} for text in documents)), options=ReadOptions(held_out=0.25))
    split_of = {piece.text: piece.split for piece in found}
    assert all(list(split_of.values()).count(split) > 40 for split in ("train", "validation", "test"))
    backwards = read(jsonl(*({"text": text} for text in documents[::-1])), options=ReadOptions(held_out=0.25))
    assert {piece.text: piece.split for piece in backwards} == split_of
    assert {p.split for p in read(source(b'{"text": "kept"}', "a.jsonl", "test"))} == {"test"}


@pytest.mark.parametrize(("line", "message", "replaced"), [
    ("{broken\n", r"a\.jsonl, line at byte 16: expected JSON, got", None),
    ('{"body": 1}\n', r"line at byte 16: expected a field 'text', got body; use --field", None),
    ("[1]\n", "expected a field 'text', got list", None),
    ('{"text": 7}\n', r"line at byte 16: expected 'text' to be a string, got int", None),
    ('{"text": "a\\ud800b"}\n', "expected valid characters, got half of a surrogate pair", ("a\ufffdb", 1)),
    ('{"text": "\udc80"}\n', r"a\.jsonl is not valid UTF-8 at byte 26 .*--errors replace", ("\ufffd" * 3, 3)),
])  # fmt: skip
def test_invalid_lines(line: str, message: str, replaced: tuple[str, int] | None) -> None:
    of = jsonl({"text": "fin"}, line)
    with pytest.raises(TextError, match=message):
        read(of)
    if replaced:
        assert [(p.text, p.replaced) for p in read(of, options=REPLACE)] == [("fin", 0), replaced]


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 50)
    with pytest.raises(TextError, match="line at byte 0: longer than 50 bytes: expected one document per line"):
        read(jsonl({"text": "x" * 50}))


def parquet(path: Path, column: str, values: list[object]) -> Source:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({column: values, "other": range(len(values))}), path, row_group_size=4)
    (found,), _ = survey(find_sources([path]), 0, lambda _: None)
    return found


def test_rows_are_documents(tmp_path: Path) -> None:
    of = parquet(tmp_path / "a.parquet", "text", [f"row {i}" for i in range(10)] + ["", None, "end"])
    assert of.rows == 13
    found = read(of)
    assert [p.text for p in found] == [*(f"row {i}" for i in range(10)), "end"]
    assert [p.end for p in found] == [*range(1, 11), 13]


def test_invalid_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = parquet(tmp_path / "a.parquet", "body", ["a" * 1000])
    with pytest.raises(TextError, match=r"a\.parquet: expected a column 'text', got body, other; use --field"):
        read(of)
    with pytest.raises(TextError, match=r"a\.parquet, row 0: expected 'text' to be a string, got int"):
        read(parquet(tmp_path / "a.parquet", "text", [1]))
    damaged = parquet(tmp_path / "b.parquet", "text", [f"{i}" * 1000 for i in range(9)])
    data = bytearray(damaged.path.read_bytes())
    data[4:200] = bytes(196)
    damaged.path.write_bytes(data)
    with pytest.raises(TextError, match=r"b\.parquet is damaged"):
        read(damaged)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"a\.parquet needs pyarrow: pip install pyarrow"):
        read(of)


def test_a_text_that_changed() -> None:
    of = source(b"some text")
    of.path.write_bytes(b"some")
    with pytest.raises(TextError, match=r"a\.txt changed while it was read: expected 9 bytes"):
        read(of)
