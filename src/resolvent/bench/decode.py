"""One more token: `extend` from a cache that holds a long past, against attention over a cache of keys and values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from resolvent.bench.machine import measure_machine
from resolvent.bench.measure import in_turns
from resolvent.bench.record import ONE_TOKEN, BenchRecord, Measurement
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

    def record(self) -> BenchRecord:
        """The same as a record on disk, with the limits of the machine, which are measured now."""
        measurements = [
            Measurement(
                case=step.case,
                peer=step.case == "sdpa",
                workload=ONE_TOKEN,
                n=position.n,
                tokens=self.batch,
                seconds=step.us / 1e6,
                least=step.range_us[0] / 1e6,
                most=step.range_us[1] / 1e6,
                cache_bytes=step.cache_bytes,
            )
            for position in self.positions
            for step in position.steps
        ]
        shape = f"batch {self.batch}, {self.heads} heads of {self.head_dim}, {self.dtype}"
        return BenchRecord.new("decode", shape, self.rounds, self.threads, measure_machine(), measurements)


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
        cases = {"sdpa": _sdpa(n, batch, heads, head_dim)}
        cases |= {str(p): _extend(p, n, batch, heads, head_dim) for p in patterns}
        with torch.inference_mode():
            runs = {case: partial(_repeat, run) for case, (run, _) in cases.items()}
            rounds_taken = in_turns(runs, rounds, after_each)
        taken = {case: [took / _CALLS for took in times] for case, times in rounds_taken.items()}
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
                        cases[case][1],
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
        fill_randomly(cache, [n] * batch)
        held += sum(tensor[:, :, : stage.slots(n)].nbytes for tensor in cache.tensors.values())
        caches[name] = cache
    x, qa, ka, qb, kb = (torch.randn(batch, heads, 1, head_dim) for _ in range(5))
    gate = torch.rand(batch, heads, 1)
    made: Cache = caches["a"] if len(caches) == 1 else Caches(caches)
    return partial(extend, x, p, made, a=(qa, ka), b=(qb, kb), gate=gate), held


def fill_randomly(cache: Cache, lengths: Sequence[int]) -> None:
    """Random numbers in a new cache, as if each row had seen so many tokens."""
    if isinstance(cache, Caches):
        for child in cache.values():
            fill_randomly(child, lengths)
        return
    if isinstance(cache, DecodeCache):
        groups = [slice(0, len(lengths))] if len(set(lengths)) == 1 else [slice(b, b + 1) for b in range(len(lengths))]
        for group in groups:
            cache.advance(group, lengths[group.start])
    else:
        cache.positions[:] = lengths
    for tensor in cache.tensors.values():
        tensor.normal_()


def _repeat(run: Callable[[], object]) -> None:
    for _ in range(_CALLS):
        run()
