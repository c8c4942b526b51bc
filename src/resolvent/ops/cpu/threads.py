"""Jobs of kernels divided among threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch


def in_threads(work: Callable[[int, int], None], heads: int, cuts: tuple[int, ...]) -> None:
    """Run work(first, last) over all jobs, heads × sequences, in as many threads as torch would use."""
    lengths = np.diff(cuts)
    jobs = heads * len(lengths)
    threads = min(torch.get_num_threads(), jobs)
    if threads <= 1:
        if jobs:
            work(0, jobs)
        return
    if len(lengths) == 1:
        edges = [jobs * thread // threads for thread in range(threads + 1)]
    else:  # as equal in rows as undivided sequences allow
        done = np.concatenate([[0], np.cumsum(np.tile(lengths, heads))])
        edges = np.searchsorted(done, done[-1] * np.arange(threads + 1) / threads).tolist()
        edges[-1] = jobs
    pool = _pool(os.getpid(), torch.get_num_threads())
    others = [pool.submit(work, first, last) for first, last in pairwise(edges[1:])]
    try:
        work(edges[0], edges[1])  # this thread would only wait
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork, so a child makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"resolvent-{process}")
