"""Torch's own team of threads, for work of ours.

After each of its operations torch's OpenMP threads spin for a while, in case another follows. A pool beside them would
compete with them for cores: measured, kernels then take up to 1.8 × as long (docs/bench.md). So kernels run on these
very threads: `GOMP_parallel` of the library that torch has loaded calls a function on each of them. libgomp has that
function, and so have LLVM's and Intel's libraries but for Windows; where it is not found, there is no team.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

_NAMES = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.(so|dylib)[.\d]*$")

_work: dict[int, Callable[[], None]] = {}
_numbers = count(1)
_forked = False


def run_on_team(work: Callable[[], None], threads: int) -> bool:
    """Call `work` on each of torch's threads, and wait for all; False, and nothing is done, if there is no team.

    Several Python threads may call this at once: each has a team of its own, as it has in torch. An error that `work`
    raises is raised here. In a forked child the team is gone, and to call it would wait for ever.
    """
    parallel = None if _forked else _parallel()
    if parallel is None:
        return False
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # a callback can raise nothing: C would not know what to do with it
            errors.append(error)

    number = next(_numbers)
    _work[number] = guarded
    try:
        parallel(_callback, number, threads, 0)
    finally:
        del _work[number]
    if errors:
        raise errors[0]
    return True


class TeamFunctions(NamedTuple):
    """Addresses of functions of the team's library: to call one on all threads, and for these to call."""

    thread_number: int
    team_size: int
    barrier: int


def team_functions() -> TeamFunctions | None:
    """What a compiled function that runs on the team may call; None if there is no team."""
    return None if _forked or _parallel() is None else _functions()


def run_compiled(function: int, data: bytes | ctypes.Array[ctypes.c_char], threads: int) -> None:
    """Call a compiled function with this argument on each of torch's threads, and wait for all."""
    parallel = _compiled_parallel()
    parallel(function, data, threads, 0)


@cache
def _compiled_parallel() -> Callable[[int, bytes | ctypes.Array[ctypes.c_char], int, int], None]:
    parallel = _library().GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    call: Callable[[int, bytes | ctypes.Array[ctypes.c_char], int, int], None] = parallel
    return call


@cache
def _functions() -> TeamFunctions:
    names = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")
    return TeamFunctions(*(ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0 for name in names))


def _library() -> ctypes.CDLL:
    """Never loads it: if torch does not use this file, its threads are not torch's."""
    return ctypes.CDLL(str(_loaded()), mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def library() -> Path | None:
    """The OpenMP library that torch runs on, if it can be called."""
    return None if _parallel() is None else _loaded()


@cache
def _parallel() -> Callable[[object, int, int, int], None] | None:
    if _loaded() is None:
        return None
    try:
        parallel = _library().GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    call: Callable[[object, int, int, int], None] = parallel
    return call


def _loaded() -> Path | None:
    """The one in torch's own folder or else the only one in this process: with two, nobody knows which is torch's."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info() or not hasattr(os, "RTLD_NOLOAD"):
        return None
    own = sorted(path for path in Path(torch.__file__).with_name("lib").glob("lib*omp*") if _NAMES.match(path.name))
    libraries = own or sorted(set(_in_process()))
    return libraries[0] if len(libraries) == 1 else None


def _in_process() -> Iterator[Path]:
    if sys.platform == "linux":
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            path = Path(line.rpartition(" ")[2])
            if _NAMES.match(path.name):
                yield path


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _call(number: int) -> None:
    _work[number]()


_callback = _CALLBACK(_call)


def _leave_team() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_team)
