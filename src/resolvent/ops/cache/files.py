"""Caches in files: tensors and a layout in one safetensors file, written atomically and read with suspicion."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from resolvent.errors import shortened
from resolvent.fields import as_mapping
from resolvent.files import atomic_write
from resolvent.tensor_files import TensorFile, read_header
from resolvent.untrusted import parse

FORMAT, VERSION = "resolvent-cache", "2"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], layout: dict[str, Any]) -> None:
    """All of it, or the file as it was."""
    from safetensors.torch import save_file  # only those who use files need it

    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    metadata = {"format": FORMAT, "version": VERSION, "layout": json.dumps(layout)}
    with atomic_write(Path(path)) as beside:
        save_file(copies, beside, metadata)


def read(path: str | os.PathLike[str]) -> tuple[TensorFile, dict[str, Any]]:
    """The header, and the layout that it contains; format and version are checked. No tensor is read."""
    file = read_header(Path(path), "expected one written by cache.save().")
    _check_kind(file.path, file.metadata)
    try:
        layout = as_mapping(parse(file.metadata.get("layout", "")), "the layout")
        return file, layout if file.metadata["version"] == VERSION else _from_version_1(layout)
    except ValueError as error:
        raise ValueError(f"{path} has no readable layout ({error}): save the cache again.") from None


def read_tensors(file: TensorFile) -> dict[str, Tensor]:
    """All tensors, perhaps in the file's own memory."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(file.path)
    except SafetensorError as error:  # tensors that overlap
        raise ValueError(f"{file.path} is damaged ({error}): save the cache again.") from None
    return tensors


def _check_kind(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} does not hold a cache: expected a file of format {FORMAT!r} written by cache.save(), "
            f"got {shortened(metadata.get('format'))}."
        )
    if metadata.get("version") not in ("1", VERSION):
        raise ValueError(
            f"{path}: expected version {VERSION!r} of {FORMAT}, got {shortened(metadata.get('version'))}: "
            "read it with the release of resolvent that wrote it, or save the cache again."
        )


def _from_version_1(layout: dict[str, Any]) -> dict[str, Any]:
    """What version 1 called otherwise."""
    names = {"parts": "tensors", "room": "capacity", "tokens": "max_tokens", "normalise": "normalize"}
    renamed = {names.get(key, key): value for key, value in layout.items()}
    if renamed.get("normalize") == "whole":
        renamed["normalize"] = "joint"
    if "children" in renamed:
        children = as_mapping(renamed["children"], "children").items()
        renamed["children"] = {name: _from_version_1(as_mapping(child, name)) for name, child in children}
    return renamed
