"""Jobs of kernels divided among threads: torch's own team, or a pool where that cannot be had (`openmp.py`)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from resolvent.kernels import BoundKernel
from resolvent.ops.cpu.openmp import run_compiled, run_on_team, team_functions

Chunks: TypeAlias = tuple[tuple[int, int], ...]  # of jobs: the first, and the one after the last

_ROUNDS = 2  # each time a thread takes this part of its fair share of what is left


def no_scratch() -> tuple[()]:
    return ()


def in_threads(
    work: Callable[..., None], heads: int, cuts: tuple[int, ...], scratch: Callable[[], Sequence[object]] = no_scratch
) -> None:
    """Run work(*scratch, first, last) over all jobs, heads × sequences, in as many threads as torch would use.

    Threads take chunks of jobs in turns, so that none waits long for the last; each has scratch of its own.
    """
    jobs = heads * (len(cuts) - 1)
    threads = min(torch.get_num_threads(), jobs)
    if threads <= 1:
        if jobs:
            work(*scratch(), 0, jobs)
        return
    chunks = _chunks(heads, cuts, threads)
    if not (isinstance(work, BoundKernel) and _run_compiled(work, chunks, scratch, threads)):
        _run_called(work, chunks, scratch, threads)


def _run_compiled(work: BoundKernel, chunks: Chunks, scratch: Callable[[], Sequence[object]], threads: int) -> bool:
    """On torch's team without Python, which lets one thread at a time through; False if that cannot be."""
    team = team_functions()
    if team is None:
        return False
    own = [scratch() for _ in range(min(threads, len(chunks)))]  # lives until all threads are done
    call = work.for_team(own, np.array(chunks, dtype=np.int64).tobytes(), team.thread_number)
    if call is None:
        return False
    function, data = call
    run_compiled(function, data, torch.get_num_threads())
    work.check(data)
    return True


def _run_called(
    work: Callable[..., None], chunks: Chunks, scratch: Callable[[], Sequence[object]], threads: int
) -> None:
    queue = deque(chunks)

    def take() -> None:
        own: Sequence[object] | None = None
        while True:
            try:
                first, last = queue.popleft()
            except IndexError:
                return
            own = scratch() if own is None else own
            work(*own, first, last)

    if not run_on_team(take, torch.get_num_threads()):
        _run_in_pool(take, threads)


@lru_cache(maxsize=64)
def _chunks(heads: int, cuts: tuple[int, ...], threads: int) -> Chunks:
    """Jobs first … last - 1 of each chunk, which has a share of the rows that are left, so that the last are small."""
    done = np.concatenate([[0], np.cumsum(np.tile(np.diff(cuts), heads))])  # rows before each job
    edges = [0]
    while edges[-1] < len(done) - 1:
        first = edges[-1]
        share = done[first] + (done[-1] - done[first]) / (_ROUNDS * threads)
        edges.append(max(first + 1, int(np.searchsorted(done, share, side="right")) - 1))
    return tuple(pairwise(edges))


def _run_in_pool(take: Callable[[], None], threads: int) -> None:
    pool = _pool(os.getpid(), torch.get_num_threads())
    others = [pool.submit(take) for _ in range(threads - 1)]
    try:
        take()  # this thread would only wait
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork, so a child makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"resolvent-{process}")
