"""Caches read back from files. What a file holds is compared with what its layout promises before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import torch
from torch import Tensor

from resolvent.ops.cache import Cache, Layout, State
from resolvent.ops.cache_file import read
from resolvent.ops.several import Caches
from resolvent.ops.slots import DecodeCache


def load_cache(path: str | PathLike[str], device: torch.device | str = "cpu") -> Cache:
    """The cache that `save` wrote, checked, on this device. Snapshots are not in the file."""
    tensors, layout = read(path)
    try:
        cache = _hollow(layout)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, MemoryError, OverflowError) as error:
        raise ValueError(f"{path} has a damaged layout ({error!r}): save the cache again.") from None
    if wrong := _differences(cache.parts, tensors):
        raise ValueError(f"{path} is not what its layout says: {'; '.join(wrong)}. Save the cache again.")
    cache.fill(tensors)
    return cache.to(device=device)  # copies: nothing depends on the file any longer


def _hollow(layout: Layout) -> Cache:
    """A cache of tensors without memory, which say what is expected."""
    match layout["kind"]:
        case "slots":
            return DecodeCache.hollow(layout)
        case "state":
            return State.hollow(layout)
        case "several":
            return Caches({name: _hollow(child) for name, child in layout["children"].items()})
    raise ValueError(f"expected kind 'slots', 'state' or 'several', got {layout['kind']!r}")


def _differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    wrong = [f"{name} is missing" for name in missing] + [f"{name} is not expected" for name in extra]
    for name in sorted(expected.keys() & found.keys()):
        want, have = expected[name], found[name]
        if want.shape != have.shape:
            wrong.append(f"expected {name} of shape {tuple(want.shape)}, got {tuple(have.shape)}")
        if want.dtype != have.dtype:
            wrong.append(f"expected {name} of {want.dtype}, got {have.dtype}")
    return wrong
