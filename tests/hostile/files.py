"""How hostile files are made: JSON of all kinds, and safetensors whose headers say anything."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
LONG = '"' + "a" * 9_000_000 + '"'
NOT_JSON = ["", "{", "nothing", "[]", "3", "null", "\x00", "9" * 100_000, DEEP, DEEP_OBJECT, LONG]
WRONG: list[Any] = [None, True, -1, 0.5, 1e999, float("nan"), 10**30, "no", "", [], {}, [[[1]]], {"a": {"b": None}}]


def write_header(
    path: Path, header: Mapping[str, object] | bytes, data: bytes = b"", length: int | None = None
) -> None:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values inside of plain ones, the first two of each list."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from leaves(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with the value at a path replaced."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], tuple(rest), new)}
    return [replaced(item, tuple(rest), new) if index == key else item for index, item in enumerate(value)]
