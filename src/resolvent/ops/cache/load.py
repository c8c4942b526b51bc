"""Caches read back from files. What a file holds is compared with what its layout promises before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import torch

from resolvent.errors import shortened
from resolvent.fields import as_mapping, check_names
from resolvent.ops.cache.base import Cache, Layout
from resolvent.ops.cache.caches import Caches
from resolvent.ops.cache.files import read, read_tensors
from resolvent.ops.cache.scan_state import ScanState
from resolvent.ops.cache.slots import DecodeCache
from resolvent.patterns.table import tables_within_limits
from resolvent.tensor_files import StoredTensor

Stored = Mapping[str, StoredTensor]


def load_cache(path: str | PathLike[str], device: torch.device | str = "cpu") -> Cache:
    """Load a cache that `save` wrote. Snapshots are not in the file.

    Args:
        path: file of the cache; it is checked, and a damaged one raises an error.
        device: where the tensors go.

    Returns:
        The cache, of the class that was saved; nothing depends on the file any longer.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     DecodeCache("quadratic+cache", batch=1, heads=2, dim=8, key_dim=8, max_tokens=64).save(f"{folder}/cache")
    ...     load_cache(f"{folder}/cache").slots
    8
    """
    file, layout = read(path)
    try:
        with tables_within_limits():
            cache = _from_layout(layout, file.tensors)
    except ValueError as error:
        raise ValueError(f"{path} has a damaged layout: {error} Save the cache again.") from None
    cache.fill(read_tensors(file))
    return cache.to(device=device)  # copies: nothing depends on the file any longer


def _from_layout(layout: Layout, stored: Stored) -> Cache:
    """A cache of tensors without memory, which are those of the file: never more than it really holds."""
    match layout.get("kind"):
        case "slots":
            return DecodeCache.from_layout(layout, stored)
        case "state":
            return ScanState.from_layout(layout, stored)
        case "several":
            check_names(layout, ("kind", "children"), "the layout of several caches", optional=())
            children = as_mapping(layout["children"], "children")
            by_child = _by_child(stored)
            if extra := sorted(by_child.keys() - children.keys()):
                raise ValueError(f"expected tensors of the caches {shortened(list(children))}, got {shortened(extra)}.")
            return Caches(
                {
                    name: _from_layout(as_mapping(child, name), by_child.get(name, {}))
                    for name, child in children.items()
                }
            )
    raise ValueError(f"expected kind 'slots', 'state' or 'several', got {shortened(layout.get('kind'))}.")


def _by_child(stored: Stored) -> dict[str, dict[str, StoredTensor]]:
    """Tensors under their own names, by the child that the first part of their name names."""
    groups: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        child, _, own = name.partition("/")
        groups.setdefault(child, {})[own] = tensor
    return groups
