"""What the rules with a state of fixed size share: padding leaves it alone, and a cache keeps it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from resolvent.coefficients.layer import Layer
from resolvent.coefficients.place import Place
from resolvent.ops import Cache
from resolvent.patterns import Pattern


def only_pattern(layer: Layer) -> Pattern:
    """The one pattern of a layer whose heads cannot differ."""
    groups = layer.groups()
    if len(groups) > 1:
        raise ValueError(f"{layer.rule.name} takes one pattern for all heads, got {len(groups)} different ones.")
    return groups[0].pattern


def expand_heads(x: Tensor, layer: Layer) -> Tensor:
    """Values shared by a group of heads, once for each."""
    return x if layer.kv_heads == layer.heads else x.repeat_interleave(layer.heads // layer.kv_heads, 1)


def of_new_tokens(place: Place, t: Tensor) -> Tensor:
    """(B, heads, N, …) with zeros in padding."""
    return t if place.inside is None else t.masked_fill(~place.inside[:, None, :, None], 0)


def advance(cache: Cache, place: Place, n: int, **parts: Tensor) -> None:
    """Keep the state after n rows, of which padding does not count."""
    starts = 0 if place.start is None else np.asarray(place.start)
    cache.parts |= {name: part if part.requires_grad else part.detach() for name, part in parts.items()}
    cache.positions += n - starts
