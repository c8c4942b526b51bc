"""The public operations: arguments are checked here, once, and handed to a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.analysis.cost import reads_several
from resolvent.ops import compiled, cpu, dense, portable, reference, whole
from resolvent.ops.extend import advance
from resolvent.ops.heads import count_heads, repeated
from resolvent.ops.rows import rows
from resolvent.ops.sequences import (
    Integers,
    back_to_their_places,
    check_one_way,
    checked_cuts,
    checked_starts,
    to_the_front,
)
from resolvent.ops.slots import DecodeCache, Normalise
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.errors import closest
from resolvent.patterns.strides import Rule

BACKENDS: dict[str, ModuleType] = {"cpu": cpu, "dense": dense, "torch": portable, "reference": reference}

_LONG = 768  # tokens from which matrix products beat the kernels for the dense recurrence (docs/log.md)

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # x, qa, ka, qb, kb, gate


@dataclass(frozen=True)
class Choice:
    """A backend, and why it was chosen."""

    backend: str
    why: str


def choose_backend(x: Tensor, p: Pattern | str = "exponential") -> Choice:
    """What `backend="auto"` does with a tensor like this, (B, H, N, D), and a pattern."""
    kind = _kind(p, False)
    return _choose("auto", x, kind, kind.dense)


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, p: Pattern | str, *, backend: str = "auto") -> Tensor:
    """Y = (I - B)^-1 A x from explicit coefficients on a pattern.

    x: (B, H, N, D).  alpha: (B, H, N, 1 + W), column 0 for the token itself, then its sources, nearest first
    (`p.table(N)`); one column if A is diagonal.  beta: (B, H, N, W), or None if the pattern has no feedback.
    """
    p = pattern(p)
    _check_rank("x", x, "(B, H, N, D)")
    n = x.shape[-2]
    where = rows(p, (0, n))
    width = where.width
    columns = 1 + width if p.direct == "all" else 1
    _check_shape("alpha", alpha, (*x.shape[:-1], columns), f"(B, H, N, {columns}) for {p} on {n} tokens")
    if p.recurrent and beta is None:
        raise ValueError(f"{p} feeds outputs back: expected beta of shape {(*x.shape[:-1], width)}, got None.")
    if not p.recurrent and beta is not None:
        raise ValueError(f"{p} has no feedback: expected beta=None, got a tensor of shape {tuple(beta.shape)}.")
    if beta is not None:
        _check_shape("beta", beta, (*x.shape[:-1], width), f"(B, H, N, {width}) for {p} on {n} tokens")
    _check_alike(x=x, alpha=alpha, beta=beta)
    kind = _kind(p, False)
    name = _choose(backend, x, kind, False).backend  # coefficients are n × W in any case
    _check_backend(name, x.device, kind)
    result: Tensor = BACKENDS[name].solve(x, alpha, beta, where)
    return result


def mix(
    x: Tensor,
    qa: Tensor | None,
    ka: Tensor | None,
    qb: Tensor | None,
    kb: Tensor | None,
    gate: Tensor | float | None,
    p: Pattern | str,
    *,
    scale: float | None = None,
    normalise: Normalise = "gate",
    tied: Tensor | float | None = None,
    cu_seqlens: Integers | None = None,
    start: Integers | None = None,
    backend: str = "auto",
) -> Tensor:
    """Y = (I - B)^-1 A x with A = (1 - g) softmax(qa·ka), B = g softmax(qb·kb) on the pattern.

    x: (B, H, N, D); qa, ka, qb, kb: (B, H, N, D'); gate: (B, H, N) in [0, 1], or a number, or a tensor that broadcasts,
    such as (H, 1); scale: 1/sqrt(D') unless given.
    What the pattern does not use may be None: qb, kb and gate without feedback (attention, local), qa and ka where A is
    diagonal, qb and kb where no token reads more than one other (first-order): a softmax over one entry is 1.
    Grouped queries: x, ka and kb may have fewer heads, G, than qa, qb and gate have, H = G × a whole number; head h of
    the queries then uses head h // (H / G) of the others, and y has H heads.

    normalise: "gate" as above; "whole" runs the softmax over the whole of T: direct scores compete with what feedback
    brings, weighed by g softmax(qb·kb) (docs/theory.md). Coefficients are then written out, n × W.
    tied: δ, a number or one per head, ties the two matrices: A = δ B + D' with rows of A + B that sum to one. Half the
    work, and qa, ka are not used (docs/theory.md).
    cu_seqlens: 0, ends of the sequences packed along N; none reads another, and each has its own lattice.
    start: (B,) where each sequence begins, after padding on the left; outputs before it are zero.
    """
    kind = _kind(p, tied is not None)
    whole_t = _is_whole(normalise, kind, tied)
    inputs, scale = _prepare(x, qa, ka, qb, kb, gate, kind, scale, scored=kind.direct or whole_t)
    x, qa, ka, qb, kb, g = (repeated(t, inputs[5].shape[1]) for t in inputs)
    inputs, n = (x, qa, ka, qb, kb, g), x.shape[-2]
    check_one_way(cu_seqlens, start)
    cuts = (0, n) if cu_seqlens is None else checked_cuts(cu_seqlens, n)
    name = _choose(backend, x, kind, kind.dense and not whole_t).backend
    _check_backend(name, x.device, kind)
    moved = inputs
    if start is not None:
        begin = torch.tensor(checked_starts(start, x.shape[0], n), device=x.device)
        x, qa, ka, qb, kb, g = to_the_front((*inputs[:5], inputs[5][..., None]), begin)
        moved = (x, qa, ka, qb, kb, g[..., 0])
    if torch.compiler.is_compiling():
        _check_traceable(kind, whole_t)
    with _as_prepared(x.device.type):
        if whole_t:
            y, _ = whole.mix(*moved, rows(_pattern(p, False), cuts), scale, BACKENDS[name])
        elif torch.compiler.is_compiling():
            y = compiled.mix(*moved, kind.spelling, list(cuts), scale, name)
        else:
            y = BACKENDS[name].mix(*moved, rows(_pattern(p, tied is not None), cuts), scale)
    return _untie(y if start is None else back_to_their_places(y, begin), inputs[0], tied)


def extend(
    x: Tensor,
    qa: Tensor | None,
    ka: Tensor | None,
    qb: Tensor | None,
    kb: Tensor | None,
    gate: Tensor | float | None,
    p: Pattern | str,
    cache: DecodeCache,
    *,
    scale: float | None = None,
    normalise: Normalise = "gate",
    tied: Tensor | float | None = None,
    start: Integers | None = None,
    backend: str = "auto",
) -> Tensor:
    """`mix` on the next tokens of sequences whose past is in the cache, which is brought up to date in place.

    Prefill, chunked prefill and decoding are this one operation, for any number of tokens: all splits of a sequence
    give what `mix` gives on the whole. Where gradients are asked for, they flow through the cache. `cache.clone()` is
    a state to come back to. `start` skips padding on the left, and sequences may stand at different positions.
    With grouped queries the cache needs `kv_heads`, the heads of x, ka and kb.
    """
    kind = _kind(p, tied is not None)
    whole_t = _is_whole(normalise, kind, tied)
    inputs, scale = _prepare(x, qa, ka, qb, kb, gate, kind, scale, scored=kind.direct or whole_t)
    x, key_dim, heads = inputs[0], inputs[1].shape[-1], inputs[5].shape[1]
    _check_cache(cache, x, heads, key_dim, _pattern(p, tied is not None), normalise)
    starts = [0] * x.shape[0] if start is None else checked_starts(start, x.shape[0], x.shape[2])
    name = _choose(backend, x, kind, kind.dense and not whole_t).backend
    _check_backend(name, x.device, kind)
    fast = name in ("cpu", "dense") and x.device.type == "cpu" and cpu.can_step(x, key_dim, cache.parts)
    step = whole.step if whole_t else cpu.step if fast else portable.step
    with _as_prepared(x.device.type):
        y = advance(inputs, cache, starts, scale, BACKENDS[name], step)
    return _untie(y, repeated(x, heads), tied)


def _is_whole(normalise: str, kind: Kind, tied: object) -> bool:
    """Without feedback the two normalisations are one."""
    if normalise not in ("gate", "whole"):
        raise ValueError(f"expected normalise 'gate' or 'whole', got {normalise!r}.")
    if normalise == "whole" and tied is not None:
        raise ValueError("tied matrices are normalised by the gate: expected normalise='gate', got 'whole'.")
    return normalise == "whole" and kind.recurrent


class Kind(NamedTuple):
    """What the checks need to know of a pattern: constants, which a graph can hold."""

    spelling: str
    direct: bool
    recurrent: bool
    keyed: bool  # whether feedback needs scores, which that from a single source does not
    dense: bool
    spelled: bool  # whether the spelling says it all, which that of a Python function does not


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kind(p: Pattern | str, tied: bool) -> Kind:
    return _facts(p, tied)


@lru_cache(maxsize=256)
def _facts(p: Pattern | str, tied: bool) -> Kind:
    found = _pattern(p, tied)
    spelled = not isinstance(found.strides, Rule)
    keyed = found.recurrent and reads_several(found)
    return Kind(str(found), found.direct == "all", found.recurrent, keyed, dense.handles(found), spelled)


def _pattern(p: Pattern | str, tied: bool) -> Pattern:
    p = pattern(p)
    if tied and not p.recurrent:
        raise ValueError(f"tied needs a pattern with feedback, got {p}.")
    return replace(p, direct="diagonal") if tied else p


def _prepare(
    x: Tensor, qa: Tensor | None, ka: Tensor | None, qb: Tensor | None, kb: Tensor | None,
    gate: Tensor | float | None, kind: Kind, scale: float | None, scored: bool,
) -> tuple[Inputs, float]:  # fmt: skip
    """Every tensor there, checked, of one dtype; what the pattern does not use is replaced by something it ignores."""
    _check_rank("x", x, "(B, H, N, D)")  # its heads are G below
    if _autocasts(x.device.type) and x.dtype != torch.float64:  # as torch's own operations do
        dtype = torch.get_autocast_dtype(x.device.type)
        x, qa, ka, qb, kb = (None if t is None else t.to(dtype) for t in (x, qa, ka, qb, kb))  # type: ignore[assignment]
    sides = ({"qa": qa, "ka": ka} if scored else {}) | ({"qb": qb, "kb": kb} if kind.keyed else {})
    missing = [name for name, t in sides.items() if t is None]
    if kind.recurrent and gate is None:
        missing.append("gate")
    if missing:
        raise ValueError(f"{kind.spelling} needs {', '.join(missing)}: expected tensors, got None.")
    present = {name: t for name, t in sides.items() if t is not None}
    width = next(iter(present.values())).shape[-1] if present else x.shape[-1]
    queries: dict[str, Tensor] = {name: present[name] for name in ("qa", "qb") if name in present}
    heads = count_heads(x, queries, gate if kind.recurrent else None)
    batch, groups, n, _ = x.shape
    for name, t in present.items():
        expected = (batch, heads if name in queries else groups, n, width)
        _check_shape(name, t, expected, "(B, H, N, D') with the B, H, N of x")
    g = _as_gate(gate if kind.recurrent else 0.0, x, heads)
    _check_alike(x=x, **present, gate=g)
    query = next(iter(queries.values()), x)
    key = next((t for name, t in present.items() if name not in queries), x)
    qa, qb = (present.get(name, query) for name in ("qa", "qb"))
    ka, kb = (present.get(name, key) for name in ("ka", "kb"))
    return (x, qa, ka, qb, kb, g), width**-0.5 if scale is None else scale


def _as_prepared(device: str) -> AbstractContextManager[object]:
    """Autocast has had its say: what comes now is computed in float32 or better."""
    return torch.autocast(device, enabled=False) if _autocasts(device) else nullcontext()


def _autocasts(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _as_gate(gate: Tensor | float | None, x: Tensor, heads: int) -> Tensor:
    """(B, H, N), of x's dtype, or float32 beside half precision."""
    want = (x.shape[0], heads, x.shape[2])
    if not isinstance(gate, Tensor):
        return torch.full((), 0.0 if gate is None else gate, dtype=x.dtype, device=x.device).expand(want)
    if gate.ndim > 3 or any(have not in (1, full) for have, full in zip(gate.shape[::-1], want[::-1], strict=False)):
        raise ValueError(f"expected gate of shape {want}, (B, H, N), or broadcasting to it, got {tuple(gate.shape)}.")
    return gate.expand(want)


# With A = δ B + D' and rows of A + B that sum to one, D' = 1 - (1 + δ) B 1, the recurrence runs through
# u_i = g_i Σ_j B~_ij u_j + (1 - g_i) x_i alone, and y = (1 + δ) u - δ x.
def _untie(u: Tensor, x: Tensor, tied: Tensor | float | None) -> Tensor:
    if tied is None:
        return u
    if isinstance(tied, Tensor):
        if tied.shape not in ((), (x.shape[1],)):
            raise ValueError(f"expected tied to be a number or one per head, ({x.shape[1]},), got {tuple(tied.shape)}.")
        tied = tied if tied.ndim == 0 else tied[:, None, None]
    return (u + tied * (u - x)).to(u.dtype)


def _choose(name: str, x: Tensor, kind: Kind, by_products: bool) -> Choice:
    if name != "auto":
        return Choice(name, "it was asked for")
    on_cpu = x.device.type == "cpu"
    short = on_cpu and kind.recurrent and x.ndim == 4 and x.shape[2] < _LONG
    if by_products and not short:
        return Choice("dense", "every token reads every earlier one, and matrix products do that best")
    if on_cpu:
        return Choice("cpu", "the tensors are on a CPU, and compiled kernels cover every pattern there")
    return Choice("torch", f"plain torch operations run on {x.device.type}, at the pattern's own cost")


def _check_backend(name: str, device: torch.device, kind: Kind) -> None:
    """An explicit backend works or raises; it never falls back to another."""
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: expected auto or {', '.join(BACKENDS)}.{closest(name, BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on a CPU, got {device}: use 'torch' there.")
    if name == "dense" and not kind.dense:
        raise ValueError(dense.refusal(kind.spelling))


def _check_traceable(kind: Kind, whole_t: bool) -> None:
    """What `torch.compile` and `torch.export` cannot hold in a graph is refused with a reason."""
    if whole_t:
        raise NotImplementedError(
            "normalise='whole' cannot be traced yet: expected 'gate' under torch.compile and export."
        )
    if not kind.spelled:
        raise NotImplementedError(
            f"{kind.spelling} is a Python function, which no graph can hold: expected a spelling like 'stride:k**3+1'."
        )


def _check_cache(cache: DecodeCache, x: Tensor, heads: int, key_dim: int, p: Pattern, normalise: str) -> None:
    if cache.pattern != p:
        raise ValueError(f"expected a cache of {p}, got one of {cache.pattern}.")
    key_dim = key_dim if "keys_a" in cache.parts or "keys_b" in cache.parts else cache.key_dim  # no keys, no matter
    have, want = (cache.batch, cache.heads, cache.dim, cache.key_dim), (x.shape[0], heads, x.shape[-1], key_dim)
    if have != want:
        raise ValueError(f"expected a cache for B, H, D, D' = {want}, got one for {have}.")
    if cache.kv_heads != x.shape[1]:
        raise ValueError(f"expected a cache with kv_heads={x.shape[1]}, as x has, got one with {cache.kv_heads}.")
    if cache.normalise != normalise:
        raise ValueError(f"expected a cache with normalise={normalise!r}, got one with {cache.normalise!r}.")
    for name, part in cache.parts.items():
        if name == "logs":
            continue
        if part.dtype != x.dtype or part.device != x.device:
            raise TypeError(
                f"expected the cache's {name} as {x.dtype} on {x.device}, got {part.dtype} on {part.device}."
            )


def _check_rank(name: str, tensor: Tensor, shape: str) -> None:
    if tensor.ndim != 4 or tensor.shape[-2] < 1:
        raise ValueError(f"expected {name} of shape {shape} with N ≥ 1, got {tuple(tensor.shape)}.")


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"expected {name} of shape {tuple(expected)}: {meaning}, got {tuple(tensor.shape)}.")


def _check_alike(**tensors: Tensor | None) -> None:
    """All on one device, all of one floating dtype; a gate may be float32 beside half precision."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(given.items()))
    if not first.is_floating_point():
        raise TypeError(f"expected {first_name} of a floating dtype, got {first.dtype}.")
    for name, tensor in given.items():
        finer = name == "gate" and tensor.dtype == torch.float32 and first.dtype != torch.float64
        if tensor.dtype != first.dtype and not finer:
            raise TypeError(f"expected one dtype for all: {first_name} is {first.dtype}, {name} is {tensor.dtype}.")
        if tensor.device != first.device:
            raise ValueError(
                f"expected one device for all: {first_name} is on {first.device}, {name} on {tensor.device}."
            )
