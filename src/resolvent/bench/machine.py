"""What the machine can do, measured in the same run: the bounds that timings are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from resolvent.bench import kernels

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_L1, _L2 = 8 * _KIB, 256 * _KIB  # a quarter of common caches: whoever shares the core has room, too
_REPEATS = 15


@dataclass(frozen=True)
class Machine:
    """All threads together: float32 matrix products, and bytes loaded out of each level of memory."""

    matmul_gflops: float
    l1_gbs: float
    l2_gbs: float
    dram_gbs: float


def measure_machine() -> Machine:
    """The best of several tries each, since whatever else runs can only slow them down. Takes about a second."""
    threads = torch.get_num_threads()
    dram = max(64 * _MIB, 256 * _MIB // threads)  # more than any share of a last-level cache
    return Machine(
        matmul_gflops=matmul_gflops(),
        l1_gbs=load_gbs(_L1, threads),
        l2_gbs=load_gbs(_L2, threads),
        dram_gbs=load_gbs(dram, threads),
    )


def matmul_gflops(size: int = 1024) -> float:
    """What matrix products reach."""
    a = torch.randn(size, size)
    return 2 * size**3 / _quickest(lambda: a @ a) / 1e9


def load_gbs(size: int, threads: int) -> float:
    """GB/s that `threads` threads load together, each over and over from `size` bytes of its own."""
    times = max(1, _GIB // 2 // size)
    jobs = [(np.ones(size // 4, dtype=np.float32), np.zeros(1, dtype=np.float32)) for _ in range(threads)]
    load: Callable[..., None] = kernels.load
    load(*jobs[0], 1)  # compiles
    with ThreadPoolExecutor(threads) as pool:
        seconds = _quickest(lambda: list(pool.map(lambda job: load(*job, times), jobs)))
    return threads * times * size / seconds / 1e9


def _quickest(run: Callable[[], Any]) -> float:
    least = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least
