"""Safetensors files, read with suspicion: models, checkpoints and caches. No torch here.

What a header claims is compared with the size of the file, and with what is expected, before a tensor is made; and
digests tell a damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from resolvent.errors import shortened
from resolvent.fields import LARGEST, as_mapping, as_text
from resolvent.untrusted import MOST_BYTES, open_file, parse

MOST_HEADER = 2 * MOST_BYTES  # bytes: the names of tensors, and JSON as text in JSON
UNSEALED = "0" * 64  # in place of a digest that is not known yet
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_LENGTH = 8  # bytes before the header, which say how long it is
_BLOCK = 1 << 20

_DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}  # fmt: skip


class TensorLike(Protocol):
    """What a tensor is compared by."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, as the header describes it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorFile:
    """A file whose size is what its header claims."""

    path: Path
    metadata: dict[str, str]
    tensors: dict[str, StoredTensor]


def read_header(path: Path, advice: str) -> TensorFile:
    """What a file holds. A file that is not complete, or not of this kind, raises an error with the advice."""
    with open_file(path) as file:  # missing, a folder, not readable: the system says it best
        try:
            header, size = _header_bytes(file, path.stat().st_size)
            content = as_mapping(parse(header, MOST_HEADER), "the header")
            metadata = {
                key: as_text(value, f"the metadata '{key}'")
                for key, value in as_mapping(content.pop("__metadata__", {}), "the metadata").items()
            }
            sizes = {name: _stored(name, value) for name, value in content.items()}
            claimed = sum(nbytes for _, nbytes in sizes.values())
            if claimed != size:
                raise ValueError(f"expected {claimed:,} bytes of tensors, as its header says, got {size:,}")
        except ValueError as error:
            reason = str(error).removesuffix(".")
            raise ValueError(f"{path} is damaged, or not a complete safetensors file ({reason}): {advice}") from None
    return TensorFile(path, metadata, {name: stored for name, (stored, _) in sizes.items()})


def _header_bytes(file: BinaryIO, size: int) -> tuple[bytes, int]:
    length = int.from_bytes(file.read(_LENGTH), "little")
    if size < _LENGTH or length > size - _LENGTH:
        raise ValueError(f"expected a header of {length:,} bytes, got a file of {size:,}")
    if length > MOST_HEADER:
        raise ValueError(f"expected a header of at most {MOST_HEADER:,} bytes, got {length:,}")
    return file.read(length), size - _LENGTH - length


def _stored(name: str, value: object) -> tuple[StoredTensor, int]:
    """A tensor as the header has it, and its size in bytes."""
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            dtype in _DTYPES and all(type(size) is int and 0 <= size <= LARGEST for size in shape)
        ):
            kind, itemsize = _DTYPES[dtype]
            if end - begin == math.prod(shape) * itemsize <= LARGEST:
                return StoredTensor(kind, tuple(shape)), end - begin
    raise ValueError(
        f"expected a dtype of {', '.join(_DTYPES)}, a shape, and data_offsets of that size for {shortened(name)}, "
        f"got {shortened(value)}"
    )


def differences(expected: Mapping[str, TensorLike], actual: Mapping[str, TensorLike]) -> str:
    """What is missing, extra, of another shape or dtype, in one line; empty if nothing is."""
    shared = [name for name in expected if name in actual]
    shapes = [(name, tuple(actual[name].shape), tuple(expected[name].shape)) for name in shared]
    dtypes = [(name, dtype_name(actual[name]), dtype_name(expected[name])) for name in shared]
    faults = {
        "missing": [name for name in expected if name not in actual],
        "extra": [name for name in actual if name not in expected],
        "mis-shaped": [f"{name} is {got}, expected {wanted}" for name, got, wanted in shapes if got != wanted],
        "of another dtype": [f"{name} is {got}, expected {wanted}" for name, got, wanted in dtypes if got != wanted],
    }
    return "; ".join(f"{fault}: {some(names)}" for fault, names in faults.items() if names)


def dtype_name(tensor: TensorLike) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def sha256_of(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(path: Path) -> None:
    """Write a file's digest into its own metadata, where `sha256` is UNSEALED: then one file holds all of it."""
    position = _seal_position(path)
    if position is None:
        raise ValueError(f"{path} has no place for a digest: expected metadata with sha256.")
    digest = _unsealed_digest(path, position)
    with path.open("rb+") as file:
        file.seek(position)
        file.write(digest.encode())


def seal_is_broken(path: Path) -> bool:
    """Whether a file is not what `seal` saw, or was never sealed."""
    position = _seal_position(path)
    if position is None:
        return True
    with path.open("rb") as file:
        file.seek(position)
        return file.read(len(UNSEALED)).decode() != _unsealed_digest(path, position)


def _seal_position(path: Path) -> int | None:
    """Where the digest stands. Quotes inside of other metadata are escaped, so it is the only match."""
    with path.open("rb") as file:
        header, _ = _header_bytes(file, path.stat().st_size)
    match = _SEAL.search(header)
    return None if match is None else _LENGTH + match.start(1)


def _unsealed_digest(path: Path, position: int) -> str:
    """The digest of the file as it was before the seal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(position) + UNSEALED.encode())
        file.seek(position + len(UNSEALED))
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
