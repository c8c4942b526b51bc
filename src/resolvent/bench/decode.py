"""One more token: `extend` from a cache that holds a long past, against attention over a cache of keys and values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from resolvent.bench.measure import seconds
from resolvent.ops import Cache, Caches, DecodeCache, extend
from resolvent.patterns import Pattern
from resolvent.patterns.checks import require_length

_CALLS = 20  # per case and round: single calls are too short for the clock


@dataclass(frozen=True)
class Step:
    """Microseconds for one token: median over the rounds and range; sdpa's median over this one; the cache's bytes."""

    case: str
    us: float
    range_us: tuple[float, float]
    speedup: float
    cache_bytes: int


@dataclass(frozen=True)
class Position:
    n: int
    steps: list[Step]


@dataclass(frozen=True)
class DecodeReport:
    batch: int
    heads: int
    head_dim: int
    dtype: str
    threads: int
    rounds: int
    torch_version: str
    positions: list[Position]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def bench_decode(
    patterns: Sequence[Pattern],
    positions: Sequence[int],
    *,
    batch: int = 1,
    heads: int = 12,
    head_dim: int = 64,
    rounds: int = 7,
    after_each: Callable[[], None] = lambda: None,
) -> DecodeReport:
    """Time per token at each position, all patterns and sdpa taking turns. What the caches hold is random."""
    timed = []
    for n in sorted({require_length(n) for n in positions}):
        runs = {"sdpa": _sdpa(n, batch, heads, head_dim)}
        runs |= {str(p): _extend(p, n, batch, heads, head_dim) for p in patterns}
        taken: dict[str, list[float]] = {case: [] for case in runs}
        with torch.inference_mode():
            for number in range(rounds + 1):  # the first warms up and compiles
                for case, (run, _) in runs.items():
                    took = seconds(partial(_repeat, run)) / _CALLS
                    if number:
                        taken[case].append(took)
                after_each()
        yardstick = statistics.median(taken["sdpa"])
        timed.append(
            Position(
                n,
                [
                    Step(
                        case,
                        1e6 * statistics.median(times),
                        (1e6 * min(times), 1e6 * max(times)),
                        yardstick / statistics.median(times),
                        runs[case][1],
                    )
                    for case, times in taken.items()
                ],
            )
        )
    return DecodeReport(
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype="float32",
        threads=torch.get_num_threads(),
        rounds=rounds,
        torch_version=torch.__version__,
        positions=timed,
    )


def _sdpa(n: int, batch: int, heads: int, head_dim: int) -> tuple[Callable[[], Tensor], int]:
    keys, values = (torch.randn(batch, heads, n, head_dim) for _ in range(2))
    query = torch.randn(batch, heads, 1, head_dim)
    return partial(scaled_dot_product_attention, query, keys, values), keys.nbytes + values.nbytes


def _extend(p: Pattern, n: int, batch: int, heads: int, head_dim: int) -> tuple[Callable[[], Tensor], int]:
    held, caches = 0, dict[str, Cache]()
    for name, stage in zip("ab", p.stages, strict=False):  # of a pair, one for A and one for B
        cache = DecodeCache(stage, batch, heads, head_dim, head_dim)
        cache.reserve(n)
        cache.advance(slice(0, batch), n)
        for tensor in cache.tensors.values():
            tensor.normal_()
        held += sum(tensor[:, :, : stage.slots(n)].nbytes for tensor in cache.tensors.values())
        caches[name] = cache
    x, qa, ka, qb, kb = (torch.randn(batch, heads, 1, head_dim) for _ in range(5))
    gate = torch.rand(batch, heads, 1)
    made: Cache = caches["a"] if len(caches) == 1 else Caches(caches)
    return partial(extend, x, p, made, a=(qa, ka), b=(qb, kb), gate=gate), held


def _repeat(run: Callable[[], object]) -> None:
    for _ in range(_CALLS):
        run()
