"""Plain values, as JSON has them, checked against the fields of a dataclass: types, names and bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from resolvent.errors import SettingError, closest, shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**62  # of any integer: what tensors and clocks hold, with room to add

# Annotations of fields that have bounds; `check_types` knows them by name.
Count = int  # ≥ 0
Positive = int  # ≥ 1
Amount = float  # finite, ≥ 0
Share = float  # from 0 to 1

_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "int"),
    "Count": (int, "int ≥ 0"),
    "Positive": (int, "int ≥ 1"),
    "float": ((int, float), "float"),
    "Amount": ((int, float), "a finite float ≥ 0"),
    "Share": ((int, float), "a float from 0 to 1"),
    "bool": (bool, "bool"),
    "str": (str, "str"),
}
_LEAST = {"Count": 0, "Positive": 1, "Amount": 0, "Share": 0}


def check_types(values: DataclassInstance) -> None:
    """Fields annotated with one of the names above, or None beside, hold such a value; others are not looked at."""
    for field in dataclasses.fields(values):
        annotation = str(field.type)
        name = annotation.removesuffix(" | None")
        value = getattr(values, field.name)
        if name not in _KINDS or (value is None and annotation != name):
            continue
        kind, description = _KINDS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and name != "bool") or not _in_bounds(value, name):
            optional = "" if annotation == name else " or None"
            raise SettingError(f"expected {field.name} to be {description}{optional}, got {shortened(value)}.")


def _in_bounds(value: object, name: str) -> bool:
    """Numbers only: a kind that is none has no bounds."""
    if not isinstance(value, int | float):
        return True
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return False
    if name in ("Amount", "Share") and not math.isfinite(value):
        return False
    least, most = _LEAST.get(name), 1 if name == "Share" else None
    return (least is None or value >= least) and (most is None or value <= most)


def as_mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise SettingError(f"expected {what} to be an object of named values, got {shortened(value)}.")
    return dict(value)


def as_list(value: object, what: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise SettingError(f"expected {what} to be a list, got {shortened(value)}.")
    return list(value)


def as_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise SettingError(f"expected {what} to be text, got {shortened(value)}.")
    return value


def as_integer(value: object, what: str, least: int = 0, most: int = LARGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingError(f"expected {what} to be an integer from {least:,} to {most:,}, got {shortened(value)}.")
    return value


def as_integers(value: object, what: str, most: int = LARGEST) -> list[int]:
    """A list of integers ≥ 0."""
    return [as_integer(item, f"each number of {what}", most=most) for item in as_list(value, what)]


def as_numbers(value: object, what: str, count: int) -> list[float]:
    """A list of so many numbers."""
    items = as_list(value, what)
    numbers = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    if len(items) != count or len(numbers) != count or any(abs(n) > LARGEST for n in numbers if isinstance(n, int)):
        raise SettingError(f"expected {what} to be a list of {count} numbers, got {shortened(value)}.")
    return numbers


def as_row(value: object, what: str, integers: int, count: int) -> list[float]:
    """A list of so many numbers, the first of which are integers ≥ 0."""
    numbers = as_numbers(value, what, count)
    if any(not (0 <= number <= LARGEST) or number != int(number) for number in numbers[:integers]):
        raise SettingError(f"expected {what} to begin with {integers} integers ≥ 0, got {shortened(value)}.")
    return [int(number) for number in numbers[:integers]] + numbers[integers:]


def check_names(values: Iterable[str], known: Iterable[str], what: str, optional: Iterable[str] | None = None) -> None:
    """An unknown name raises an error with the closest known one; so does a missing one, unless `optional` has it.

    If `optional` is None, all are.
    """
    given, names = list(values), list(known)
    for name in given:
        if name not in names:
            raise SettingError(
                f"unknown setting {_quoted(name)} of {what}: expected {', '.join(names)}.{closest(name[:99], names)}"
            )
    missing = [] if optional is None else [n for n in names if n not in given and n not in optional]
    if missing:
        raise SettingError(f"{what} is incomplete: expected {', '.join(missing)}, too.")


def check_format(values: dict[str, object], name: str, version: int, what: str) -> None:
    """Take `format` and `version` out of a file's values, and check them."""
    kind, actual = values.pop("format", None), values.pop("version", None)
    if kind != name:
        raise SettingError(f"expected {what} of format '{name}', got {shortened(kind)}.")
    if type(actual) is not int or actual != version:
        raise SettingError(
            f"expected {what} of version {version}, got {shortened(actual)}: use the release that wrote it."
        )


def field_names(kind: type[DataclassInstance]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _quoted(name: str) -> str:
    return f"'{name}'" if len(name) < 99 else f"'{name[:60]}…'"
