"""The backends by name, and which one runs a call. No other file knows them by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch

from resolvent.errors import closest
from resolvent.ops import cpu, dense, portable, reference, triton
from resolvent.ops.backend import Backend, PreparedBackend, Request
from resolvent.patterns import Stage

# In the order in which `auto` asks them.
BACKENDS: dict[str, Backend] = {backend.NAME: backend for backend in (dense, cpu, triton, portable, reference)}


@dataclass(frozen=True)
class Choice:
    """A backend's name, and why it was chosen."""

    backend: str
    why: str


def choose(backend: str | Backend, request: Request) -> tuple[Backend, str]:
    """The backend that runs this, and why. One that was asked for works or raises an error: nothing falls back."""
    if backend == "auto":
        refused: list[str] = []  # by those that would have been chosen before
        for candidate in BACKENDS.values():
            why = candidate.preference(request)
            refusal = None if why is None else candidate.refusal(request)
            if why is not None and refusal is None:
                return candidate, "; ".join([why, *refused])
            refused += [] if refusal is None else [refusal.rstrip(".")]
    chosen = find(backend)
    refusal = chosen.refusal(request)
    if refusal is not None:
        usable = ", ".join(name for name, other in BACKENDS.items() if other.refusal(request) is None)
        raise ValueError(f"{refusal} Backends that can: {usable}.")
    return chosen, "it was asked for"


def prepare(backend: str | Backend, patterns: Iterable[Stage], dtype: torch.dtype, d: int) -> None:
    """Let the backends get ready that will mix by these patterns on a CPU, with heads of d channels.

    Whatever fails, a call will say it.
    """
    for pattern in patterns:
        with suppress(ValueError, RuntimeError, NotImplementedError, OSError):
            request = Request("mix", str(pattern), pattern.is_dense, pattern.recurrent, "cpu", tokens=1024)
            chosen, _ = choose(backend, request)
            if isinstance(chosen, PreparedBackend):
                chosen.prepare(pattern, dtype, d)


def registered_name(backend: Backend) -> str:
    """How a traced graph names a backend; one that is not registered cannot be found again."""
    if BACKENDS.get(backend.NAME) is not backend:
        raise NotImplementedError(
            f"backend '{backend.NAME}' is not registered, and no graph can hold it: expected {', '.join(BACKENDS)} "
            "under torch.compile and export."
        )
    return backend.NAME


def find(backend: str | Backend) -> Backend:
    """A backend by its name, or the one given."""
    if not isinstance(backend, str):
        return backend
    if backend not in BACKENDS:
        names = ", ".join(BACKENDS)
        raise ValueError(f"unknown backend {backend!r}: expected auto or {names}.{closest(backend, BACKENDS)}")
    return BACKENDS[backend]
