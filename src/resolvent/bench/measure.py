"""Seconds and bytes: all cases take turns within one process, so that noise falls on all alike."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from resolvent.ops.cpu.memory import release, tune_allocator

Name = TypeVar("Name", bound=Hashable)

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def in_turns(
    runs: Mapping[Name, Callable[[], object]], rounds: int, after_each: Callable[[], None]
) -> dict[Name, list[float]]:
    """Seconds of every run in every round; a round before the first warms up, and compiles."""
    taken: dict[Name, list[float]] = {case: [] for case in runs}
    for number in range(rounds + 1):
        for case, run in runs.items():
            took = seconds(run)
            if number:
                taken[case].append(took)
        after_each()
    return taken


@contextmanager
def frugal_allocator() -> Iterator[None]:
    """Within, whatever is freed goes back to the system at once, so that memory held is memory in use.

    Otherwise glibc keeps freed blocks of up to 32 MiB and may be unable to fill the holes, which counts them twice.
    Best done before anything large was freed. What it is set to afterwards is where its own rule ends up, too; keeping
    is faster.
    """
    tune_allocator(keep=0)
    try:
        yield
    finally:
        tune_allocator(keep=32 * 2**20)


def peak_bytes(run: Callable[[], object]) -> int | None:
    """The most bytes of memory that a call holds beyond what was held before; None where it cannot be known.

    Linux counts the pages a process holds, remembers the most there ever were, and forgets that when told to. Pages
    that the allocator keeps from earlier calls are given back first, or the call would use them for nothing. The
    caller warms up, so that compiling does not count, and uses `frugal_allocator`.
    """
    gc.collect()
    release()
    if not _give_back_free_pages() or not _forget_peak():
        return None
    before = _resident("VmRSS")
    run()
    peak = _resident("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def _give_back_free_pages() -> bool:
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return True


def _forget_peak() -> bool:
    try:
        _CLEAR.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def _resident(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(kib[0]) if kib else None


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
