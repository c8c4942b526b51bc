"""The public operations: arguments are checked here, once, and handed to a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from resolvent.ops import cpu, dense, portable, reference
from resolvent.ops.cache import DecodeCache
from resolvent.ops.extend import advance
from resolvent.ops.rows import Rows, rows
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.errors import closest

BACKENDS: dict[str, ModuleType] = {"cpu": cpu, "dense": dense, "torch": portable, "reference": reference}

Integers = Sequence[int] | Tensor
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # x, qa, ka, qb, kb, gate


@dataclass(frozen=True)
class Choice:
    """A backend, and why it was chosen."""

    backend: str
    why: str


def choose_backend(x: Tensor, p: Pattern | str = "exponential") -> Choice:
    """What `backend="auto"` does with a tensor like this and a pattern."""
    p = pattern(p)
    if dense.handles(p) and x.ndim == 4 and x.shape[-2] > 1:
        return Choice("dense", f"every token of {p} reads every earlier one, so matrix products do it best")
    if x.device.type == "cpu":
        return Choice("cpu", "the tensors are on a CPU, and compiled kernels cover every pattern there")
    return Choice("torch", f"plain torch operations run on {x.device.type}, at the pattern's own cost")


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
    name = "cpu" if backend == "auto" and x.device.type == "cpu" else backend
    result: Tensor = _backend(name, x, p).solve(x, alpha, beta, where)
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
    tied: Tensor | float | None = None,
    cu_seqlens: Integers | None = None,
    start: Integers | None = None,
    backend: str = "auto",
) -> Tensor:
    """Y = (I - B)^-1 A x with A = (1 - g) softmax(qa·ka), B = g softmax(qb·kb) on the pattern.

    x: (B, H, N, D); qa, ka, qb, kb: (B, H, N, D'); gate: (B, H, N) in [0, 1], or a number, or a tensor that broadcasts,
    such as (H, 1); scale: 1/sqrt(D') unless given.
    What the pattern does not use may be None: qb, kb and gate without feedback (attention, local), qa and ka where A is
    diagonal.

    tied: δ, a number or one per head, ties the two matrices: A = δ B + D' with rows of A + B that sum to one. Half the
    work, and qa, ka are not used (docs/theory.md).
    cu_seqlens: 0, ends of the sequences packed along N; none reads another, and each has its own lattice.
    start: (B,) where each sequence begins, after padding on the left; outputs before it are zero.
    """
    p, inputs, scale = _prepare(x, qa, ka, qb, kb, gate, p, scale, tied)
    n = x.shape[-2]
    if cu_seqlens is not None and start is not None:
        raise ValueError("expected cu_seqlens (packed) or start (padded on the left), got both.")
    cuts = (0, n) if cu_seqlens is None else _cuts(cu_seqlens, n)
    run = _backend(backend, x, p)
    if start is None:
        y = run.mix(*inputs, rows(p, cuts), scale)
    else:
        begin = torch.tensor(_starts(start, x), device=x.device)
        y = _padded(run, inputs, begin, rows(p, cuts), scale)
    return _untie(y, x, tied)


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
    tied: Tensor | float | None = None,
    start: Integers | None = None,
    backend: str = "auto",
) -> Tensor:
    """`mix` on the next tokens of sequences whose past is in the cache, which is brought up to date in place.

    Prefill, chunked prefill and decoding are this one operation, for any number of tokens: all splits of a sequence
    give what `mix` gives on the whole. Where gradients are asked for, they flow through the cache; `cache.clone()` keeps
    a state to come back to. `start` skips padding on the left, and sequences may stand at different positions.
    """
    p, inputs, scale = _prepare(x, qa, ka, qb, kb, gate, p, scale, tied)
    _check_cache(cache, x, inputs[2].shape[-1], p)
    starts = [0] * x.shape[0] if start is None else _starts(start, x)
    chosen = _backend(backend, x, p)
    fast = chosen in (cpu, dense) and x.device.type == "cpu" and cpu.can_step(x, inputs[1].shape[-1], cache.parts)
    y = advance(inputs, cache, starts, scale, chosen, cpu.step if fast else portable.step)
    return _untie(y, x, tied)


def _prepare(
    x: Tensor, qa: Tensor | None, ka: Tensor | None, qb: Tensor | None, kb: Tensor | None,
    gate: Tensor | float | None, p: Pattern | str, scale: float | None, tied: Tensor | float | None,
) -> tuple[Pattern, Inputs, float]:  # fmt: skip
    """Every tensor there, checked, of one dtype; what the pattern does not use is replaced by something it ignores."""
    p = pattern(p)
    _check_rank("x", x, "(B, H, N, D)")
    if tied is not None:
        if not p.recurrent:
            raise ValueError(f"tied needs a pattern with feedback, got {p}.")
        p = replace(p, direct="diagonal")
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, qa, ka, qb, kb = (None if t is None else t.to(dtype) for t in (x, qa, ka, qb, kb))
    sides = {"qa": qa, "ka": ka} if p.direct == "all" else {}
    if p.recurrent:
        sides |= {"qb": qb, "kb": kb}
        if gate is None:
            raise ValueError(f"{p} feeds outputs back: expected a gate, got None.")
    missing = [name for name, t in sides.items() if t is None]
    if missing:
        raise ValueError(f"{p} needs {', '.join(sides)}: expected tensors, got None for {', '.join(missing)}.")
    present = {name: t for name, t in sides.items() if t is not None}
    width = next(iter(present.values())).shape[-1] if present else x.shape[-1]
    for name, t in present.items():
        _check_shape(name, t, (*x.shape[:-1], width), "(B, H, N, D') with the B, H, N of x")
    g = torch.as_tensor(gate if p.recurrent else 0.0, device=x.device)
    try:
        g = g.expand(x.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"expected gate of shape {tuple(x.shape[:-1])}, (B, H, N), or one that broadcasts to it, got {tuple(g.shape)}."
        ) from None
    if not (isinstance(gate, Tensor) and g.dtype not in (x.dtype, torch.float32)):
        g = g.to(x.dtype)
    _check_alike(x=x, **present, gate=g)
    spare = next(iter(present.values()), x)
    filled = [present.get(name, spare) for name in ("qa", "ka", "qb", "kb")]
    return p, (x, filled[0], filled[1], filled[2], filled[3], g), width**-0.5 if scale is None else scale


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


def _padded(run: Any, inputs: Inputs, begin: Tensor, where: Rows, scale: float) -> Tensor:
    """Each sequence moved to the front, so that its lattice starts with it; what follows it is read by no token of it."""
    n = where.new
    places = torch.arange(n, device=begin.device)
    there = (places + begin[:, None]).clamp(max=n - 1)
    inside = (places < n - begin[:, None])[:, None, :, None]
    moved = [torch.where(inside, _along(t, there), 0) for t in (*inputs[:5], inputs[5][..., None])]
    y = run.mix(*moved[:5], moved[5][..., 0], where, scale)
    back = (places - begin[:, None]).clamp(min=0)
    return torch.where((places >= begin[:, None])[:, None, :, None], _along(y, back), 0)


def _along(t: Tensor, index: Tensor) -> Tensor:
    """Rows of each sequence, taken by (B, N) positions."""
    return t.gather(2, index[:, None, :, None].expand(*t.shape[:2], index.shape[1], t.shape[-1]))


def _cuts(cu_seqlens: Integers, n: int) -> tuple[int, ...]:
    cuts = _whole_numbers("cu_seqlens", cu_seqlens)
    if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != n or any(after < before for before, after in pairwise(cuts)):
        raise ValueError(
            f"expected cu_seqlens from 0 to N = {n}, never descending, such as [0, {n // 2}, {n}]; got {_shown(cuts)}."
        )
    return tuple(cuts)


def _starts(start: Integers, x: Tensor) -> list[int]:
    starts, (batch, n) = _whole_numbers("start", start), (x.shape[0], x.shape[2])
    if len(starts) != batch or any(not 0 <= s <= n for s in starts):
        raise ValueError(f"expected start with B = {batch} numbers from 0 to N = {n}, got {_shown(starts)}.")
    return starts


def _whole_numbers(name: str, values: Integers) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor) else list(values)
    if not isinstance(listed, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in listed):
        raise TypeError(f"expected {name} as a list or a one-dimensional tensor of integers, got {values!r}.")
    return listed


def _shown(values: list[int]) -> str:
    return str(values) if len(values) <= 12 else f"[{', '.join(map(str, values[:10]))}, …, {values[-1]}]"


def _backend(name: str, x: Tensor, p: Pattern) -> ModuleType:
    """An explicit backend works or raises; it never falls back to another."""
    if name == "auto":
        name = choose_backend(x, p).backend
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: expected auto or {', '.join(BACKENDS)}.{closest(name, BACKENDS)}")
    if name == "cpu" and x.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on a CPU, got {x.device}: use 'torch' there.")
    if name == "dense":
        dense.require(p)
    return BACKENDS[name]


def _check_cache(cache: DecodeCache, x: Tensor, key_dim: int, p: Pattern) -> None:
    if cache.pattern != p:
        raise ValueError(f"expected a cache of {p}, got one of {cache.pattern}.")
    have = (cache.batch, cache.heads, cache.dim, cache.key_dim)
    if have != (x.shape[0], x.shape[1], x.shape[-1], key_dim):
        raise ValueError(
            f"expected a cache for B, H, D, D' = {(x.shape[0], x.shape[1], x.shape[-1], key_dim)}, got one for {have}."
        )
    for name, part in cache.parts.items():
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
