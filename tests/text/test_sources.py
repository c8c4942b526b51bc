"""Sources: which files are found, which rule splits them, and that every byte is in exactly one split."""

import dataclasses
import errno
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from resolvent.text import TextError
from resolvent.text.info import SPLITS
from resolvent.text.sources import Source, find_sources, split_of_hash, survey, unchanged


def surveyed(paths: list[Path], held_out: float = 0.05) -> tuple[list[Source], str]:
    return survey(find_sources(paths), held_out, lambda _: None)


def write(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def test_found_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "c", {"b.txt": "b", "a/z.jsonl": "", "a/y.txt.gz": "y", "skip.md": "no", "a.parquet": ""})
    found = find_sources([tmp_path / "c", tmp_path / "c" / "b.txt"])
    assert [s.name for s in found] == ["c/a.parquet", "c/a/y.txt.gz", "c/a/z.jsonl", "c/b.txt", "b.txt"]
    assert [s.kind for s in found] == ["parquet", "txt", "jsonl", "txt", "txt"]


def test_content_is_measured_unpacked(tmp_path: Path) -> None:
    """Of any other name than those of records it is plain text."""
    write(tmp_path, {"a.txt": "é\n" * 100, "b.txt.gz": "é\n" * 100, "README.md": "é\n" * 100, "c.md.gz": "é\n" * 100})
    for name in ("a.txt", "b.txt.gz", "README.md", "c.md.gz"):
        (source,), rule = surveyed([tmp_path / name])
        assert (source.kind, rule, source.bytes) == ("txt", "tail", 300)
        assert source.stored < 100 if name.endswith(".gz") else source.stored == 300
        assert source.sha256 == hashlib.sha256("é\n".encode() * 100).hexdigest()


def test_files_named_after_splits_keep_them(tmp_path: Path) -> None:
    for number, (names, splits) in enumerate([
        (["train.txt", "valid.txt", "test.txt"], ["test", "train", "validation"]),
        (["train.jsonl", "val.jsonl"], ["train", "validation"]),
        (["train.txt", "test.txt"], ["test", "train"]),
        (["train-00000-of-00002.txt.gz", "train-00001-of-00002.txt", "validation.txt"],
         ["train", "train", "validation"]),
    ]):  # fmt: skip
        sources, rule = surveyed([write(tmp_path / str(number), dict.fromkeys(names, "text"))])
        assert rule == "kept"
        assert [s.split for s in sources] == splits
    for names in (["test.txt", "valid.txt"], ["train.txt", "trained.txt"], ["train.txt", "notes.txt"]):
        assert surveyed([write(tmp_path / names[1], dict.fromkeys(names, "some text\n"))])[1] == "tail"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("line", ["a line of é\n", "no end in sight ", "é" * 30])
def test_the_tail_of_one_text(name: str, line: str, tmp_path: Path) -> None:
    text = line * 200
    (source,), rule = surveyed([write(tmp_path, {name: text})], 0.1)
    assert rule == "tail"
    data = text.encode()
    ranges = source.ranges()
    assert [split for split, _, _ in ranges] == list(SPLITS)
    parts = [data[begin:end].decode() for _, begin, end in ranges]  # no character is torn
    assert "".join(parts) == text
    for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
        assert len(part.encode()) == pytest.approx(share * len(data), abs=len(line.encode()) + 1)
    if line[-1] in " \n":
        assert parts[0][-1] == parts[1][-1] == line[-1]


def test_files_are_ranked_by_hash(tmp_path: Path) -> None:
    texts = {f"{i:02}.txt": f"text {i}\n" for i in range(60)}
    ranked = sorted(texts, key=lambda name: hashlib.sha256(texts[name].encode()).hexdigest())
    for number, (count, held_out, each) in enumerate(((60, 0.05, 3), (3, 0.05, 1), (9, 0, 0))):
        of = {name: texts[name] for name in ranked[:count]}
        sources, rule = surveyed([write(tmp_path / str(number), of | {"empty.txt": ""})], held_out)
        assert rule == "files"
        by_split = {split: {s.name for s in sources if s.split == split and s.bytes} for split in SPLITS}
        names = [f"{number}/{name}" for name in ranked[:count]]
        expected = [names[2 * each :], names[each : 2 * each], names[:each]]
        assert [by_split[split] for split in ("train", "validation", "test")] == [set(part) for part in expected]


def test_shares_are_what_they_say(tmp_path: Path) -> None:
    """Of documents, and of texts that stand beside records."""
    splits = [split_of_hash(hashlib.sha256(str(i).encode()).hexdigest(), 0.1) for i in range(5000)]
    for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert np.mean([s == split for s in splits]) == pytest.approx(share, abs=0.02)
    texts = {f"{i}.txt": str(i) for i in range(9)}
    sources, rule = surveyed([write(tmp_path, {"a.jsonl": ""} | texts)], 0.1)
    assert rule == "documents"
    found = {s.name.split("/")[1]: s.split for s in sources}
    assert found == {"a.jsonl": None} | dict(zip(texts, splits, strict=False))


def test_change_is_seen(tmp_path: Path) -> None:
    found = find_sources([write(tmp_path, {"a.txt": "line\n"})])
    (source,), _ = survey(found, 0.1, lambda _: None)
    assert found[0].with_info(source.info) == source
    recorded = [found[0].info]
    assert unchanged(found, recorded, found[0].changed + 1)
    assert not unchanged(found, recorded, found[0].changed)  # touched since
    assert not unchanged(found, [dataclasses.replace(recorded[0], stored=4)], found[0].changed + 1)
    assert not unchanged([], recorded, found[0].changed + 1)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": "text"}) / "a.txt"

    def locked(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", locked)
        with pytest.raises(TextError, match=r"a\.txt cannot be read \(Permission denied\): expected a readable file"):
            surveyed([path])
    path.unlink()
    path.symlink_to("/proc/self/mem")  # there, and every read of its beginning fails
    with pytest.raises(TextError, match=r"a\.txt cannot be read \(Input/output error\)"):
        surveyed([path])


def test_errors(tmp_path: Path) -> None:
    write(tmp_path, {"a.pdf": "", "nothing/a.md": "", "half.txt.gz": "text " * 100, "no.txt.gz": "", "a.parquet": "no"})
    with pytest.raises(TextError, match=r"no texts in the folder .*nothing: expected files that end in \.txt"):
        find_sources([tmp_path / "nothing"])
    with pytest.raises(TextError, match=r"there is no file or folder .*absent"):
        find_sources([tmp_path / "absent"])
    half = tmp_path / "half.txt.gz"
    half.write_bytes(half.read_bytes()[:-9])
    (tmp_path / "no.txt.gz").write_bytes(b"no gzip")
    for name in ("half.txt.gz", "no.txt.gz"):
        with pytest.raises(TextError, match=f"{name} is damaged: expected a complete gzip file"):
            surveyed([tmp_path / name])
    with pytest.raises(TextError, match=r"a\.parquet is damaged: expected a complete parquet file"):
        surveyed([tmp_path / "a.parquet"])
