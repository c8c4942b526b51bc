"""Tensors and a layout in one safetensors file: written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from resolvent.files import whole

FORMAT, VERSION = "resolvent-cache", "1"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], layout: dict[str, Any]) -> None:
    """All of it, or the file as it was."""
    from safetensors.torch import save_file  # only those who use files need it

    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    metadata = {"format": FORMAT, "version": VERSION, "layout": json.dumps(layout)}
    with whole(Path(path)) as beside:
        save_file(copies, beside, metadata)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, perhaps in the file's own memory, and the layout; format and version are checked."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    with path.open("rb"):  # missing, a folder, not readable: the system says it best
        pass
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_kind(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no complete safetensors file ({error}): expected one written by cache.save(), got one that was "
            "cut short, damaged or made by something else."
        ) from None
    try:
        layout = json.loads(metadata["layout"])
        if not isinstance(layout, dict):
            raise TypeError(f"expected an object, got {type(layout).__name__}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no readable layout ({error!r}): save the cache again.") from None
    return tensors, layout


def _check_kind(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} holds no cache: expected a file of format {FORMAT!r} written by cache.save(), "
            f"got {metadata.get('format')!r}."
        )
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected version {VERSION!r} of {FORMAT}, got {metadata.get('version')!r}: "
            "read it with the release of resolvent that wrote it, or save the cache again."
        )
