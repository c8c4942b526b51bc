"""What the machine can do, measured in the same run: the bounds that timings are held against."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from resolvent.bench import kernels
from resolvent.bench.measure import seconds
from resolvent.bench.record import Machine

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_L1, _L2 = 8 * _KIB, 256 * _KIB  # a quarter of common caches: whatever shares the core has room, too
_REPEATS = 15


def measure_machine(threads: int | None = None) -> Machine:
    """The best of several tries each, since whatever else runs can only slow them down. Takes about a second.

    They take turns, so that a busy moment does not spoil all tries of one. With as many threads as torch has, or is to
    have from here on.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    threads = torch.get_num_threads()
    dram = max(64 * _MIB, 256 * _MIB // threads)  # more than any share of a last-level cache
    with ThreadPoolExecutor(threads) as pool:
        tries = {
            "matmul_gflops": matmul_try(),
            "l1_gbs": load_try(pool, threads, _L1),
            "l2_gbs": load_try(pool, threads, _L2),
            "dram_gbs": load_try(pool, threads, dram),
        }
        speeds = [{name: attempt() for name, attempt in tries.items()} for _ in range(_REPEATS)]
    return Machine(**{name: max(each[name] for each in speeds) for name in tries})


def matmul_try(size: int = 1024) -> Callable[[], float]:
    """A measurement of GFLOP/s that matrix products reach."""
    a = torch.randn(size, size)
    return lambda: 2 * size**3 / seconds(lambda: a @ a) / 1e9


def load_try(pool: ThreadPoolExecutor, threads: int, size: int) -> Callable[[], float]:
    """A measurement of GB/s that threads load together, each over and over from `size` bytes of its own."""
    times = max(1, _GIB // 2 // size)
    jobs = [(np.ones(size // 4, dtype=np.float32), np.zeros(1, dtype=np.float32)) for _ in range(threads)]
    load: Callable[..., None] = kernels.load
    load(*jobs[0], 1)  # compiles

    def sweep() -> None:
        for job in [pool.submit(load, *job, times) for job in jobs]:
            job.result()

    return lambda: threads * times * size / seconds(sweep) / 1e9
