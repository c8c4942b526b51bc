"""The two public operations: arguments are checked here, once, and handed to a backend."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from torch import Tensor

from resolvent.analysis.growth import most_reads
from resolvent.ops import cpu, reference
from resolvent.ops.rows import rows
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.errors import closest

BACKENDS: dict[str, ModuleType] = {"cpu": cpu, "reference": reference}


@dataclass(frozen=True)
class Choice:
    """A backend, and why it was chosen."""

    backend: str
    why: str


def choose_backend(x: Tensor) -> Choice:
    """What `backend="auto"` does with a tensor like this."""
    if x.device.type == "cpu":
        return Choice("cpu", "the tensors are on a CPU, and compiled kernels cover every pattern there")
    return Choice("reference", f"there is no fast backend for {x.device.type} yet; the reference runs anywhere, slowly")


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, p: Pattern | str, *, backend: str = "auto") -> Tensor:
    """Y = (I - B)^-1 A x from explicit coefficients on a pattern.

    x: (B, H, N, D).  alpha: (B, H, N, 1 + W), column 0 for the token itself, then its sources, nearest first
    (`p.table(N)`); one column if A is diagonal.  beta: (B, H, N, W), or None if the pattern has no feedback.
    """
    p = pattern(p)
    _check_rank("x", x, "(B, H, N, D)")
    n, width = x.shape[-2], most_reads(p, x.shape[-2])
    columns = 1 + width if p.direct == "all" else 1
    _check_shape("alpha", alpha, (*x.shape[:-1], columns), f"(B, H, N, {columns}) for {p} on {n} tokens")
    if p.recurrent and beta is None:
        raise ValueError(f"{p} feeds outputs back: expected beta of shape {(*x.shape[:-1], width)}, got None.")
    if not p.recurrent and beta is not None:
        raise ValueError(f"{p} has no feedback: expected beta=None, got a tensor of shape {tuple(beta.shape)}.")
    if beta is not None:
        _check_shape("beta", beta, (*x.shape[:-1], width), f"(B, H, N, {width}) for {p} on {n} tokens")
    _check_alike(x=x, alpha=alpha, beta=beta)
    result: Tensor = _backend(backend, x).solve(x, alpha, beta, p)
    return result


def mix(
    x: Tensor,
    qa: Tensor,
    ka: Tensor,
    qb: Tensor | None,
    kb: Tensor | None,
    gate: Tensor | None,
    p: Pattern | str,
    *,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Y = (I - B)^-1 A x with A = (1 - g) softmax(qa·ka), B = g softmax(qb·kb) on the pattern.

    x: (B, H, N, D); qa, ka, qb, kb: (B, H, N, D'); gate: (B, H, N) in [0, 1]; scale: 1/sqrt(D') unless given.
    Where the pattern has no feedback (attention, local), qb, kb and gate are ignored and may be None.
    """
    p = pattern(p)
    _check_rank("x", x, "(B, H, N, D)")
    _check_rank("qa", qa, "(B, H, N, D')")
    if not p.recurrent or qb is None or kb is None or gate is None:
        if p.recurrent:
            raise ValueError(f"{p} feeds outputs back: expected qb, kb and gate, got None for at least one.")
        qb, kb, gate = qa, ka, x.new_zeros(x.shape[:-1])
    expected = (*x.shape[:-1], qa.shape[-1])
    for name, tensor in (("qa", qa), ("ka", ka), ("qb", qb), ("kb", kb)):
        _check_shape(name, tensor, expected, "(B, H, N, D') with the B, H, N of x")
    _check_shape("gate", gate, tuple(x.shape[:-1]), "(B, H, N)")
    _check_alike(x=x, qa=qa, ka=ka, qb=qb, kb=kb, gate=gate)
    scale = qa.shape[-1] ** -0.5 if scale is None else scale
    result: Tensor = _backend(backend, x).mix(x, qa, ka, qb, kb, gate, rows(p, (0, x.shape[-2])), scale)
    return result


def _backend(name: str, x: Tensor) -> ModuleType:
    """An explicit backend works or raises; it never falls back to another."""
    if name == "auto":
        name = choose_backend(x).backend
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: expected auto or {', '.join(BACKENDS)}.{closest(name, BACKENDS)}")
    if name == "cpu" and x.device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on a CPU, got {x.device}: use 'reference' there.")
    return BACKENDS[name]


def _check_rank(name: str, tensor: Tensor, shape: str) -> None:
    if tensor.ndim != 4 or tensor.shape[-2] < 1:
        raise ValueError(f"expected {name} of shape {shape} with N ≥ 1, got {tuple(tensor.shape)}.")


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"expected {name} of shape {tuple(expected)}: {meaning}, got {tuple(tensor.shape)}.")


def _check_alike(**tensors: Tensor | None) -> None:
    """All on one device, all of one floating dtype."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(given.items()))
    if not first.is_floating_point():
        raise TypeError(f"expected {first_name} of a floating dtype, got {first.dtype}.")
    for name, tensor in given.items():
        if tensor.dtype != first.dtype:
            raise TypeError(f"expected one dtype for all: {first_name} is {first.dtype}, {name} is {tensor.dtype}.")
        if tensor.device != first.device:
            raise ValueError(
                f"expected one device for all: {first_name} is on {first.device}, {name} on {tensor.device}."
            )
