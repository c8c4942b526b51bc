"""Kernels are compiled in processes of their own, so that several are compiled at once and Numba stays out of this one.

A process that compiles holds a lock on the file that it will write, so that of many that want it one does the work; the
file appears as a whole, and a process that is killed leaves a lock that has ended with it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.disk_cache import quiet_environment, speaks
from resolvent.kernels.variant import KernelVariant, team_symbol

if TYPE_CHECKING:
    from resolvent.kernels.loader import MachineCode

COMPILING = "resolvent: compiling CPU kernels"
_LONGEST = 600  # seconds that a process may take
_POLL = 0.01

_started: dict[KernelVariant, subprocess.Popen[bytes]] = {}
_others: dict[KernelVariant, subprocess.Popen[bytes]] = {}  # of the process that forked this one: not ours to wait for
_lock = threading.RLock()
_forked = False


def obtain(variant: KernelVariant) -> MachineCode | None:
    """Its machine code, from disk or compiled now; None if it cannot be had."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    with _lock:
        code = variant.read()
        if code is None:
            _wait(variant)
            code = variant.read() or _compile(variant)
        if code is None:
            return None
        from resolvent.kernels.loader import load

        return load(code, variant.symbol, team_symbol(variant.symbol))


def start(groups: Iterable[Sequence[KernelVariant]]) -> None:
    """Compile what is not on disk yet in the background, each group by a process.

    Nothing is started in a forked child, whose parent does it or has done it.
    """
    if _forked or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    none = subprocess.DEVNULL
    with _lock:
        for group in groups:
            missing = [v for v in group if v.path is not None and not v.path.exists() and v not in _started]
            if missing:
                _announce()
                with suppress(OSError):  # no more processes: the first call tries again
                    child = subprocess.Popen(command(missing), env=_environment(), stdin=none, stdout=none, stderr=none)
                    _started.update(dict.fromkeys(missing, child))


def compile_now(variants: Sequence[KernelVariant]) -> str | None:
    """Compile in a process, and wait for it; the reason if that fails."""
    try:
        done = subprocess.run(
            command(variants), env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}"


def command(variants: Sequence[KernelVariant]) -> list[str]:
    return [sys.executable, "-P", "-m", "resolvent.kernels.compiler", *(word for v in variants for word in v)]


def _environment() -> dict[str, str]:
    paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
    return quiet_environment() | {"PYTHONPATH": os.pathsep.join(paths)}


def _wait(variant: KernelVariant) -> None:
    """Until the process that was started for it has written it, or has ended."""
    child = _started.get(variant)
    while child is not None and child.poll() is None and not (variant.path and variant.path.exists()):
        time.sleep(_POLL)


def _compile(variant: KernelVariant) -> bytes | None:
    if variant.path is None:
        return None
    _announce()
    compile_now([variant])
    return variant.read()


_announced = False


def _announce() -> None:
    global _announced
    if not _announced and speaks():
        print(f"{COMPILING} (some 10 s; kept on disk for later runs) …", file=sys.stderr, flush=True)
    _announced = True


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = True, threading.RLock()
    _others.update(_started)
    _started.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _let_go() -> None:
    """Those that still compile go on for others; `subprocess` would warn that nobody has waited for them."""
    for child in (*_started.values(), *_others.values()):
        child.returncode = 0 if child.poll() is None else child.returncode
