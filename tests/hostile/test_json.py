"""The one reader of JSON: a limit, and what stays readable. No other way to parse JSON is left in the library."""

import math
import os
import re
from pathlib import Path

import pytest

import resolvent
from resolvent.errors import SettingError
from resolvent.fields import as_row, check_format
from resolvent.tensor_files import read_header
from resolvent.untrusted import MOST_BYTES, parse, read, read_lines
from tests.counting import peak_bytes
from tests.hostile.files import DEEP

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


def test_what_is_not_json_is_said_in_a_line() -> None:
    for text, message in (
        (DEEP, "nested so deep"),
        (" " * (MOST_BYTES + 1), f"at most {MOST_BYTES:,} bytes"),
        ("9" * 5000, "expected JSON, got '9999"),
        (b"\xff\xfe", "expected JSON in UTF-8, got byte 0xff at 0"),
        ("{", r"expected JSON, got '\{'"),
    ):
        with pytest.raises(SettingError, match=message) as error:
            parse(text)
        assert len(str(error.value)) < 300


def test_what_runs_have_written_stays_readable() -> None:
    value = parse('{"loss": NaN, "perplexity": Infinity, "low": -Infinity, "text": "ü\\ud800"}')
    assert isinstance(value, dict)
    assert math.isnan(value["loss"])
    assert value["perplexity"] == math.inf


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 34)  # of holes: it takes no disk

    def load() -> None:
        with pytest.raises(SettingError, match="at most"):
            read(path)

    assert peak_bytes(load) < 3 * MOST_BYTES
    assert [number for number, _ in read_lines(path, 100)] == [1]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To open it would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    for reader in (read, lambda path: list(read_lines(path)), lambda path: read_header(path, "again")):
        with pytest.raises(ValueError, match="to be a file, got a pipe"):
            reader(tmp_path / "pipe")


def test_versions_and_rows_have_types() -> None:
    for version in (True, 1.0, "1", None, 3, [1]):
        with pytest.raises(SettingError, match="expected a thing of version 2, got"):
            check_format({"format": "f", "version": version}, "f", 2, "a thing")
    assert as_row([1.0, 2, math.inf], "a row", 2, 3) == [1, 2, math.inf]
    for row in ([math.inf, 1], [math.nan, 1], [0.5, 1], [-1, 1], [True, 1], [1, 10**30], [1], None):
        with pytest.raises(SettingError, match="expected a row to b"):
            as_row(row, "a row", 1, 2)
