"""Speed, memory and growth, measured against named peers and against what the machine can do."""

from resolvent.bench.decode import bench_decode
from resolvent.bench.peers import PEERS
from resolvent.bench.results import Report
from resolvent.bench.run import bench, use_threads

__all__ = ["PEERS", "Report", "bench", "bench_decode", "use_threads"]
