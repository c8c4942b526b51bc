"""The one reader of JSON: limits, and what stays readable. No other way to parse JSON is left in the library."""

import json
import math
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import resolvent
from resolvent.errors import SettingError, shortened
from resolvent.fields import as_row, check_format
from resolvent.ops import load_cache
from resolvent.tensor_files import read_header
from resolvent.train.shards import latest
from resolvent.untrusted import MOST_BYTES, MOST_DEPTH, MOST_VALUES, parse, read, read_lines
from tests.counting import peak_bytes
from tests.hostile.files import DEEP, DEEP_OBJECT, LESS_DEEP
from tests.hostile.limits import check_refused

SOURCE = Path(resolvent.__file__).parent


def test_all_json_is_read_in_one_place() -> None:
    found = {
        str(file.relative_to(SOURCE)): len(re.findall(r"\bjson\.loads?\(|pickle\.|torch\.load\(", file.read_text()))
        for file in SOURCE.rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == {
        "untrusted.py": 1,
        "train/config.py": 1,  # of what it has just written itself
    }


@pytest.mark.parametrize(("text", "message"), [
    (DEEP, f"nested at most {MOST_DEPTH} deep"),
    (DEEP_OBJECT, f"nested at most {MOST_DEPTH} deep"),
    (LESS_DEEP, f"nested at most {MOST_DEPTH} deep"),
    ("[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2), f"nested at most {MOST_DEPTH} deep"),
    ("[" + "0," * MOST_VALUES + "0]", f"at most {MOST_VALUES:,} values"),
    ("[" + ",".join(['{"a":' * 30 + "1" + "}" * 30] * 20_000) + "]", f"at most {MOST_VALUES:,} values"),
    (" " * (MOST_BYTES + 1), f"at most {MOST_BYTES:,} bytes"),
    ("9" * 5000, "expected JSON, got '9999"),
    (b"\xff\xfe", "expected JSON in UTF-8, got byte 0xff at 0"),
    ("{", r"expected JSON, got '\{'"),
    ("", "expected JSON, got ''"),
])  # fmt: skip
def test_limits(text: str | bytes, message: str) -> None:
    with pytest.raises(SettingError, match=message) as error:
        parse(text)
    assert len(str(error.value)) < 300


def test_what_runs_have_written_stays_readable() -> None:
    value = parse('{"loss": NaN, "perplexity": Infinity, "low": -Infinity, "text": "ü\\ud800"}')
    assert isinstance(value, dict)
    assert math.isnan(value["loss"])
    assert value["perplexity"] == math.inf
    assert parse("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    assert parse(json.dumps(["," * 2 * MOST_VALUES])) == ["," * 2 * MOST_VALUES]  # commas in a text are no values


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 34)  # of holes: it takes no disk

    def load() -> None:
        with pytest.raises(SettingError, match="at most"):
            read(path)

    assert peak_bytes(load) < 3 * MOST_BYTES
    assert [number for number, _ in read_lines(path, 100)] == [1]


def test_strings_without_an_end(tmp_path: Path) -> None:
    """Each quote might begin a string that has no end: they are not tried one after another."""
    texts = [',\\"' * 1_100_000, ',"\\' * 1_100_000, '["' + "," * 1_100_000, '["' + "," * 1_100_000 + "\\"]
    cases = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.json").write_text(text)
        cases.append((tmp_path / f"{number}.json", "expected JSON"))
    check_refused("from resolvent.untrusted import read", "read(path)", cases)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To open it would wait for a writer; this one comes if somebody does."""
    readers: list[Callable[[Path], object]] = [
        read, lambda path: list(read_lines(path)), lambda path: read_header(path, "again"), load_cache,
        lambda path: latest(path.parent),
    ]  # fmt: skip
    pipe = tmp_path / "latest"
    os.mkfifo(pipe)
    for reader in readers:
        writer = threading.Thread(target=lambda: pipe.open("wb").close())
        writer.start()
        try:
            with pytest.raises(ValueError, match="to be a file, got a pipe"):
                reader(pipe)
        finally:
            other_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            writer.join()
            os.close(other_end)


def test_messages_are_short() -> None:
    deep: object = "x"
    for _ in range(MOST_DEPTH):
        deep = [deep] * 2 if len(str(deep)) < 1000 else [deep]
    for value in ("a" * 10**6, list(range(10**5)), dict.fromkeys(range(1000)), deep, None):
        assert len(shortened(value)) < 100


def test_versions_and_rows_have_types() -> None:
    for version in (True, 1.0, "1", None, 3, [1]):
        with pytest.raises(SettingError, match="expected a thing of version 1 or 2, got"):
            check_format({"format": "f", "version": version}, "f", (1, 2), "a thing")
    assert check_format({"format": "f", "version": 2}, "f", (1, 2), "a thing") == 2
    assert as_row([1.0, 2, math.inf], "a row", 2, 3) == [1, 2, math.inf]
    for row in ([math.inf, 1], [math.nan, 1], [0.5, 1], [-1, 1], [True, 1], [1, 10**30], [1], None):
        with pytest.raises(SettingError, match="expected a row to b"):
            as_row(row, "a row", 1, 2)
