"""Speed, measured against named peers: all cases take turns within one process, so that noise falls on all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from resolvent.ops import mix
from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.errors import require_length

Run = Callable[[], Tensor]

PEERS = {
    "sdpa": "torch's causal scaled_dot_product_attention",
    "paper": "the paper's way: dense masked matrices and torch.linalg.solve_triangular (dense pattern)",
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one case: median and range over the rounds, and the first peer's median over its own."""

    case: str
    forward_ms: float
    forward_range_ms: tuple[float, float]
    forward_speedup: float
    both_ms: float
    both_range_ms: tuple[float, float]
    both_speedup: float


@dataclass(frozen=True)
class Report:
    """What was measured, and on what."""

    n: int
    batch: int
    heads: int
    head_dim: int
    dtype: str
    threads: int
    rounds: int
    torch_version: str
    matmul_gflops: float
    timings: list[Timing]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    patterns: Sequence[Pattern],
    n: int,
    *,
    peers: Sequence[str] = ("sdpa",),
    batch: int = 1,
    heads: int = 12,
    head_dim: int = 64,
    rounds: int = 7,
    backend: str = "auto",
    after_each: Callable[[], None] = lambda: None,
) -> Report:
    """Forward, and forward with backward, of each pattern and peer, interleaved; the first peer is the yardstick."""
    n = require_length(n)
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown or not peers:
        raise PatternError(f"expected peers among {', '.join(PEERS)}, got {', '.join(peers) or 'none'}.")
    torch.manual_seed(0)
    shape = (batch, heads, n, head_dim)
    x, qa, ka, qb, kb = (torch.randn(shape, requires_grad=True) for _ in range(5))
    gate = torch.rand(shape[:-1], requires_grad=True)
    weights = torch.randn(shape)
    everything = [x, qa, ka, qb, kb, gate]
    runs: dict[str, tuple[Run, list[Tensor]]] = {
        "sdpa": (lambda: scaled_dot_product_attention(qa, ka, x, is_causal=True), [x, qa, ka]),
        "paper": (lambda: dense_solve(x, qa, ka, qb, kb, gate), everything),
    }
    cases = {peer: runs[peer] for peer in peers}
    for p in patterns:
        cases[str(p)] = (partial(mix, x, qa, ka, qb, kb, gate, p, backend=backend), everything)
    forward: dict[str, list[float]] = {case: [] for case in cases}
    both: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(rounds + 1):  # the first round warms up and compiles
        for case, (run, inputs) in cases.items():
            with torch.no_grad():
                took = _seconds(run)
            took_both = _seconds(partial(_gradients, run, inputs, weights))
            if number:
                forward[case].append(took)
                both[case].append(took_both)
        after_each()
    yardstick = peers[0]
    timings = [
        Timing(case, *_summary(forward[case], forward[yardstick]), *_summary(both[case], both[yardstick]))
        for case in cases
    ]
    return Report(
        n=n,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype="float32",
        threads=torch.get_num_threads(),
        rounds=rounds,
        torch_version=torch.__version__,
        matmul_gflops=matmul_gflops(),
        timings=timings,
    )


def dense_solve(x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
    """The dense recurrence as the paper ran every pattern: full matrices, always quadratic."""
    n = x.shape[-2]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    scale = qa.shape[-1] ** -0.5
    a = (qa @ ka.mT * scale).masked_fill(~causal, -math.inf).softmax(-1)
    before = causal.tril(-1)
    before[0, 0] = True  # the first row reads nothing; it is cleared below
    b = (qb @ kb.mT * scale).masked_fill(~before, -math.inf).softmax(-1)
    g = (gate * (torch.arange(n) > 0))[..., None]
    left = torch.eye(n) - g * b.tril(-1)
    y: Tensor = torch.linalg.solve_triangular(left, (1 - g) * (a @ x), upper=False, unitriangular=True)
    return y


def use_threads(threads: int | None) -> None:
    """Let torch, and with it our kernels, use this many threads; as many as torch likes if None."""
    if threads is not None and threads < 1:
        raise PatternError(f"expected at least one thread, got {threads}.")
    if threads is not None:
        torch.set_num_threads(threads)


def matmul_gflops(size: int = 1024, repeats: int = 8) -> float:
    """What matrix products reach here: the machine's own bound, measured in the same run."""
    a = torch.randn(size, size)
    best = min(_seconds(lambda: a @ a) for _ in range(repeats))
    return 2 * size**3 / best / 1e9


def _gradients(run: Run, inputs: list[Tensor], weights: Tensor) -> Tensor:
    return torch.autograd.grad(run(), inputs, weights, allow_unused=True)[0]


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _summary(times: list[float], yardstick: list[float]) -> tuple[float, tuple[float, float], float]:
    middle = statistics.median(times)
    return 1e3 * middle, (1e3 * min(times), 1e3 * max(times)), statistics.median(yardstick) / middle
