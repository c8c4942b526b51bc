"""Rotary position embedding: queries and keys turned by angles that grow with their position (Su et al.)."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.coefficients.positions import Positions, digits
from resolvent.rules.rope import Rope


def rope(x: Tensor, positions: Positions, rotation: Rope | None) -> Tensor:
    """(B, N, heads, D) with each pair of neighbouring numbers turned; None for no rotation.

    Only differences of positions matter to scores. Angles are computed in float64, so that they are as exact after a
    million tokens as at the start, and once for all layers.
    """
    return x if rotation is None else _turned(x, positions, rotation)


def with_distance(x: Tensor, positions: Positions, rotation: Rope) -> tuple[Tensor, Tensor]:
    """(B, N, heads, D) as queries and as keys of `ops.portable.scoring.ByDistance`: (B, N, heads, 2D + 3).

    Near reads are turned as ever. Far ones are not, or all alike: then queries alone are turned, by that distance.
    """
    near = _turned(x, positions, rotation)
    position = digits(positions.ids, x.dtype)[..., None, :].expand(*x.shape[:-1], -1)
    keys = torch.cat([near, x, position], -1)
    if rotation.kind == "near":
        return keys, keys
    last = torch.tensor(rotation.within, device=x.device)
    far = _times(x, _unit_rotations(last, x.shape[-1], rotation, x.dtype == torch.float64))
    return torch.cat([near, far, position], -1), keys


def _turned(x: Tensor, positions: Positions, rotation: Rope) -> Tensor:
    key = (x.shape[-1], rotation, x.dtype == torch.float64)
    if key not in positions.rotations:
        positions.rotations[key] = _rotations(positions, *key)
    return _times(x, positions.rotations[key])  # (N, 1, D/2) or (B, N, 1, D/2), complex


def _times(x: Tensor, turn: Tensor) -> Tensor:
    working = x if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(working.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


_LONGEST = 1 << 17
_FEW = 64  # positions that are quicker computed than looked up, as in decoding
_MOST_TABLES = 16
_tables: dict[tuple[int, int, Rope, bool, torch.device], Tensor] = {}


def _rotations(positions: Positions, dim: int, rotation: Rope, double: bool) -> Tensor:
    length = 1 << max(positions.longest - 1, 63).bit_length()  # a table for every power of two
    if positions.ids.numel() <= _FEW or length > _LONGEST or torch.compiler.is_compiling():
        return _unit_rotations(positions.ids, dim, rotation, double)[..., None, :]
    key = (length, dim, rotation, double, positions.ids.device)
    table = _tables.get(key)
    if table is None:
        table = _unit_rotations(torch.arange(length, device=positions.ids.device), dim, rotation, double)
        if type(table) is Tensor and len(_tables) < _MOST_TABLES:  # never one of those that stand in while tracing
            _tables[key] = table
    return table[positions.ids][..., None, :]


def _unit_rotations(ids: Tensor, dim: int, rotation: Rope, double: bool) -> Tensor:
    if dim % 2:
        raise ValueError(f"rotary positions turn pairs: expected an even head dimension, got {dim}; or rope=None.")
    base = rotation.base * (rotation.factor ** (dim / (dim - 2)) if rotation.kind == "ntk" else 1.0)
    slow = base ** (-torch.arange(0, dim, 2, device=ids.device, dtype=torch.float64) / dim)
    if rotation.kind == "linear":
        slow = slow / rotation.factor
    angles = ids.double()[..., None] * slow
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns if double else turns.to(torch.complex64)
