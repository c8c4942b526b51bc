"""What the rules with a state of fixed size share: padding leaves it alone, and a cache keeps it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from resolvent.coefficients.layer import Layer
from resolvent.coefficients.positions import Positions
from resolvent.ops import Cache, ScanState
from resolvent.patterns import Stage


def only_stage(layer: Layer) -> Stage:
    """The feedback of the one pattern of a layer whose heads cannot differ."""
    groups = layer.groups()
    if len(groups) > 1:
        raise ValueError(f"{layer.rule.name} takes one pattern for all heads, got {len(groups)} different ones.")
    return groups[0].pattern.stages[-1]


def expand_heads(x: Tensor, layer: Layer) -> Tensor:
    """Values shared by a group of heads, once for each."""
    return x if layer.kv_heads == layer.heads else x.repeat_interleave(layer.heads // layer.kv_heads, 1)


def zero_padding(positions: Positions, t: Tensor) -> Tensor:
    """(B, heads, N, …) with zeros in padding."""
    return t if positions.mask is None else t.masked_fill(~positions.mask[:, None, :, None], 0)


def scan_state(cache: Cache) -> ScanState:
    assert isinstance(cache, ScanState)
    return cache


def advance(state: ScanState, positions: Positions, n: int, **tensors: Tensor) -> None:
    """Keep the state after n rows, of which padding does not count."""
    starts = positions.sequences.starts
    state.advance(n if starts is None else n - np.asarray(starts), **tensors)
