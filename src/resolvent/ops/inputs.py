"""The tensors of an operator call, checked: one tuple that goes from the public functions to every backend."""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.ops.precision import autocast_enabled
from resolvent.patterns import Needs

QueriesAndKeys = tuple[Tensor, Tensor]  # queries and keys
BothSides = tuple[QueriesAndKeys | None, QueriesAndKeys | None]  # of A and of B


class Inputs(NamedTuple):
    """All of one dtype (the gate may be float32 beside half precision) and device.

    x, ka, kb: (B, G, N, D) and (B, G, N, D');  qa, qb: (B, H, N, D');  gate: (B, H, N).  G divides H; in `mix`
    backends see G = H. What a pattern does not use is some other tensor of that shape, which it ignores.
    """

    x: Tensor
    qa: Tensor
    ka: Tensor
    qb: Tensor
    kb: Tensor
    gate: Tensor

    @property
    def heads(self) -> int:
        return int(self.gate.shape[1])

    @property
    def key_dim(self) -> int:
        return int(self.qa.shape[-1])

    def with_all_heads(self) -> Inputs:
        """What heads share, once for each of them."""
        return Inputs(*(repeat_heads(t, self.heads) for t in self))


class Scores(NamedTuple):
    """What weighs reads, as a caller gives it: queries and keys of A and of B, and the gate."""

    a: QueriesAndKeys | None = None
    b: QueriesAndKeys | None = None
    gate: Tensor | float | None = None


def checked_inputs(x: Tensor, scores: Scores, needs: Needs, pattern: str) -> Inputs:
    """Every tensor there, checked, of one dtype; what the pattern does not use is replaced by something it ignores.

    x itself has been looked at where the call entered (`check_rank`, or a layer's own check).
    """
    tensors = _named(scores, needs, pattern)
    if autocast_enabled(x.device.type) and x.dtype != torch.float64:  # as torch's own operations do
        dtype = torch.get_autocast_dtype(x.device.type)
        x, tensors = x.to(dtype), {name: t.to(dtype) for name, t in tensors.items()}
    key_dim = next(iter(tensors.values())).shape[-1] if tensors else x.shape[-1]
    queries = {name: t for name, t in tensors.items() if name in ("qa", "qb")}
    heads = _count_heads(x, queries or _given_queries(scores), scores.gate if needs.gate else None)
    batch, groups, n, _ = x.shape
    for name, t in tensors.items():
        expected = (batch, heads if name in queries else groups, n, key_dim)
        check_shape(name, t, expected, "(B, H, N, D') with the B, H, N of x")
    gate = _gate(scores.gate if needs.gate else 0.0, x, heads)
    check_alike(x=x, **tensors, gate=gate)
    query = next(iter(queries.values()), x)
    key = next((t for name, t in tensors.items() if name not in queries), x)
    qa, qb = (tensors.get(name, query) for name in ("qa", "qb"))
    ka, kb = (tensors.get(name, key) for name in ("ka", "kb"))
    return Inputs(x, qa, ka, qb, kb, gate)


def _named(scores: Scores, needs: Needs, pattern: str) -> dict[str, Tensor]:
    pairs = {"a": scores.a if needs.a else None, "b": scores.b if needs.b else None}
    tensors: dict[str, Tensor] = {}
    missing = []
    for side, needed in (("a", needs.a), ("b", needs.b)):
        pair = pairs[side]
        if needed and pair is None:
            missing.append(f"{side}=(q, k)")
        if pair is not None:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(t, Tensor) for t in pair):
                raise TypeError(f"expected {side} as a pair of tensors, (queries, keys), got {type(pair).__name__}.")
            tensors |= {f"q{side}": pair[0], f"k{side}": pair[1]}
    if needs.gate and scores.gate is None:
        missing.append("gate")
    if missing:
        raise ValueError(f"{pattern} needs {' and '.join(missing)}: expected tensors, got None.")
    return tensors


def _given_queries(scores: Scores) -> dict[str, Tensor]:
    """Queries that are not used still say how many heads there are."""
    pairs = {"qa": scores.a, "qb": scores.b}
    return {name: pair[0] for name, pair in pairs.items() if pair is not None and isinstance(pair[0], Tensor)}


def _count_heads(x: Tensor, queries: dict[str, Tensor], gate: Tensor | float | None) -> int:
    """H, as the queries have it, or the gate where there are none; a multiple of x's own."""
    name, heads = "x", (groups := x.shape[1])
    if queries:
        name, query = next(iter(queries.items()))
        heads = query.shape[1] if query.ndim == 4 else groups  # another rank is an error later, by its shape
    elif isinstance(gate, Tensor) and 2 <= gate.ndim <= 3 and gate.shape[-2] != 1:
        name, heads = "gate", gate.shape[-2]
    if heads != groups and (heads < groups or not groups or heads % groups):
        raise ValueError(
            f"expected {name} with as many heads as x, which has {groups}, or a multiple "
            f"(grouped queries: x and keys have fewer heads than queries and gate), got {heads}."
        )
    return heads


def _gate(gate: Tensor | float | None, x: Tensor, heads: int) -> Tensor:
    """(B, H, N), of x's dtype, or float32 beside half precision."""
    shape = (x.shape[0], heads, x.shape[2])
    if not isinstance(gate, Tensor):
        if not isinstance(gate, Real | None):
            raise TypeError(f"expected gate as a tensor or a number, got {type(gate).__name__}.")
        return torch.full((), 0.0 if gate is None else gate, dtype=x.dtype, device=x.device).expand(shape)
    if gate.ndim > 3 or any(size not in (1, full) for size, full in zip(gate.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(f"expected gate of shape {shape}, (B, H, N), or broadcasting to it, got {tuple(gate.shape)}.")
    return gate.expand(shape)


def repeat_heads(t: Tensor, heads: int) -> Tensor:
    """(B, G, …) as (B, heads, …): head h gets what group h // (heads // G) has."""
    groups = t.shape[1]
    if groups == heads:
        return t
    return t.unsqueeze(2).expand(t.shape[0], groups, heads // groups, *t.shape[2:]).flatten(1, 2)


def check_rank(name: str, tensor: Tensor, shape: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"expected {name} as a tensor of shape {shape}, got {type(tensor).__name__}.")
    if tensor.ndim != 4 or tensor.shape[-2] < 1:
        raise ValueError(f"expected {name} of shape {shape} with N ≥ 1, got {tuple(tensor.shape)}.")


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"expected {name} of shape {tuple(expected)}: {meaning}, got {tuple(tensor.shape)}.")


def check_alike(**tensors: Tensor | None) -> None:
    """All on one device, all of one floating dtype; a gate may be float32 beside half precision."""
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    if not first.is_floating_point():
        raise TypeError(f"expected {first_name} of a floating dtype, got {first.dtype}.")
    for name, tensor in present.items():
        if tensor.layout != torch.strided:
            raise TypeError(f"expected dense tensors: {name} is {tensor.layout}.")
        finer = name == "gate" and tensor.dtype == torch.float32 and first.dtype != torch.float64
        if tensor.dtype != first.dtype and not finer:
            raise TypeError(f"expected one dtype for all: {first_name} is {first.dtype}, {name} is {tensor.dtype}.")
        if tensor.device != first.device:
            raise ValueError(
                f"expected one device for all: {first_name} is on {first.device}, {name} on {tensor.device}."
            )
