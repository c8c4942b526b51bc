"""Damage: to bytes, and to values of JSON."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

from fuzz.case import Case

Json = Any
_PIECES = [
    b"\x00", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"{", b"}", b"[" * 50, b'"', b",", b"null", b"NaN", b"\xed\xa0\x80",
    b"\n",
]  # fmt: skip
_VALUES: list[Json] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, -1e-308,
    float("nan"), float("inf"), -float("inf"), "", " ", "0", "1e9", "NaN", "\x00", "é\ud800", "../x", "/", "a" * 5000,
    "9" * 5000, [], {}, [[]], [None], [0, 1], {"": None}, {"format": 1}, "float99", "load", "attention",
    "order:" + "9" * 30,
]  # fmt: skip


def damage(case: Case, content: bytes) -> bytes:
    """A few changes of bytes."""
    data = bytearray(content)
    for _ in range(case.choose([1, 1, 1, 2, 5])):
        at = case.integer(0, len(data))
        size = case.choose([1, 1, 4, 16, max(len(data) // 4, 1)])
        match case.choose(["flip", "flip", "replace", "insert", "delete", "repeat", "truncate"]):
            case "flip" if data:
                data[at % len(data)] ^= 1 << case.integer(0, 7)
            case "replace":
                data[at : at + size] = case.random.randbytes(size)
            case "insert":
                data[at:at] = case.choose([*_PIECES, case.random.randbytes(size)])
            case "delete":
                del data[at : at + size]
            case "repeat":
                data[at:at] = data[at : at + size]
            case "truncate":
                del data[at:]
    return bytes(data)


def distort(case: Case, value: Json, depths: tuple[int, ...] = (1, 3, 300, 2000)) -> Json:
    """A few values replaced, removed, moved or nested so deep; keys renamed. The value given stays as it is."""
    changed, nested = copy.deepcopy(value), []
    for _ in range(case.choose([1, 1, 1, 2, 4])):
        places = list(_places(changed))
        if not places:
            return case.choose(_VALUES)
        box, key = case.choose(places)
        match case.choose(["replace"] * 5 + ["remove", "rename", "move", "nest", "repeat", "near"]):
            case "remove":
                del box[key]
            case "rename" if isinstance(box, dict):
                box[case.choose(["", "x", f"{key}s", str(key).upper(), "__class__"])] = box.pop(key)
            case "move":
                other, name = case.choose(places)
                box[key] = copy.deepcopy(other[name]) if _has(other, name) else None
            case "nest":
                nested.append((box, key, case.choose(depths)))
            case "repeat" if isinstance(box[key], list):
                box[key] = box[key] * 3
            case "near":
                box[key] = _near(case, box[key])
            case _:
                box[key] = copy.deepcopy(case.choose(_VALUES))
    for box, key, depth in nested:  # last: Python's own copies of deep values fail
        if _has(box, key):
            box[key] = _nested(box[key], depth)
    return changed


def distorted_json(case: Case, content: bytes) -> bytes:
    """A file of JSON with values or bytes changed; Python writes and reads NaN and infinities, too."""
    if case.chance(0.3):
        return damage(case, content)
    return dump(distort(case, json.loads(content)))


def dump(value: Json) -> bytes:
    return _dumps(value).encode("utf-8", "surrogatepass")


def _dumps(value: Json) -> str:
    """`json.dumps` that knows no limit of depth."""
    depth = 0
    while isinstance(value, list) and len(value) == 1 and depth < 5000:
        value, depth = value[0], depth + 1
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{json.dumps(str(key))}: {_dumps(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(_dumps, value)) + "]"
    else:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)
    return "[" * depth + text + "]" * depth


def distorted_safetensors(case: Case, content: bytes, nested: tuple[str, ...]) -> bytes:
    """A safetensors file with its bytes, its header, or JSON inside its header (`nested`) changed."""
    if case.chance(0.3):
        return damage(case, content)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header.get("__metadata__", {})
    inside = [name for name in nested if name in metadata]
    if inside and case.chance(0.7):
        name = case.choose(inside)
        metadata[name] = dump(distort(case, json.loads(metadata[name]))).decode("utf-8", "surrogatepass")
    else:
        header = distort(case, header)
    encoded = dump(header)
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + data


def _places(value: Json) -> Iterator[tuple[Json, Any]]:
    """Every (container, key) inside a value, down to some depth."""
    stack = [(value, 0)]
    while stack:
        box, depth = stack.pop()
        keys: list[Any] = list(box) if isinstance(box, dict) else list(range(len(box))) if isinstance(box, list) else []
        for key in keys:
            yield box, key
            if depth < 12:
                stack.append((box[key], depth + 1))


def _has(box: Json, key: Any) -> bool:
    return key in box if isinstance(box, dict) else key < len(box)


def _nested(value: Json, depth: int) -> Json:
    for _ in range(depth):
        value = [value]
    return value


def _near(case: Case, value: Json) -> Json:
    """A value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return case.choose([value + 1, value - 1, -value, value * 2, value * 10**6, value << 40])
    if isinstance(value, float):
        return case.choose([-value, value * 1e300, value / 3, value + 1])
    if isinstance(value, str):
        return damage(case, value.encode("utf-8", "replace")).decode("utf-8", "replace")
    return value
