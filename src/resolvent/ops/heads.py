"""Grouped queries: heads next to each other may share the values and keys of one."""

from __future__ import annotations

from torch import Tensor


def repeated(t: Tensor, heads: int) -> Tensor:
    """(B, G, …) as (B, heads, …): head h gets what group h // (heads // G) has."""
    groups = t.shape[1]
    if groups == heads:
        return t
    return t.unsqueeze(2).expand(t.shape[0], groups, heads // groups, *t.shape[2:]).flatten(1, 2)


def count_heads(x: Tensor, queries: dict[str, Tensor], gate: Tensor | float | None) -> int:
    """H, as the queries have it, or the gate where there are none; a multiple of x's own."""
    name, heads = "x", (groups := x.shape[1])
    if queries:
        name, query = next(iter(queries.items()))
        heads = query.shape[1] if query.ndim == 4 else groups  # another rank is refused later, by its shape
    elif isinstance(gate, Tensor) and 2 <= gate.ndim <= 3 and gate.shape[-2] != 1:
        name, heads = "gate", gate.shape[-2]
    if heads != groups and (heads < groups or not groups or heads % groups):
        raise ValueError(
            f"expected {name} with as many heads as x, which has {groups}, or a multiple "
            f"(grouped queries: x, ka and kb have fewer heads than qa, qb and gate), got {heads}."
        )
    return heads
