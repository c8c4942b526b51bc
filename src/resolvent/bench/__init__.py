"""Speed, memory and growth, measured against named peers and against what the machine can do.

Records of benchmarks need no torch; what measures loads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from resolvent.bench.record import PEERS, BenchRecord, add_record, read_bench_records

if TYPE_CHECKING:
    from resolvent.bench.decode import bench_decode
    from resolvent.bench.generation import bench_generation
    from resolvent.bench.run import bench, use_threads
    from resolvent.bench.training import bench_training

__all__ = [
    "PEERS",
    "BenchRecord",
    "add_record",
    "bench",
    "bench_decode",
    "bench_generation",
    "bench_training",
    "read_bench_records",
    "use_threads",
]

_NEEDS_TORCH = {
    "bench": "run",
    "bench_decode": "decode",
    "bench_generation": "generation",
    "bench_training": "training",
    "use_threads": "run",
}


def __getattr__(name: str) -> object:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"resolvent.bench.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module 'resolvent.bench' has no attribute {name!r}")
