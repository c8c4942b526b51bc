"""One more token: `extend` from a cache that holds a long past, against attention over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def bench_decode(
    patterns: Sequence[Pattern],
    positions: Sequence[int],
    *,
    batch: int = 1,
    heads: int = 12,
    head_dim: int = 64,
    rounds: int = 7,
    after_each: Callable[[], None] = lambda: None,
) -> BenchRecord:
    """Time per token at each position, all patterns and sdpa taking turns. What the caches hold is random."""
    limits, measured = measure_machine(), list[Measurement]()
    for n in sorted({require_length(n) for n in positions}):
        cases = {"sdpa": _sdpa(n, batch, heads, head_dim)}
        cases |= {str(p): _extend(p, n, batch, heads, head_dim) for p in patterns}
        with torch.inference_mode():
            taken = in_turns({case: partial(_repeat, run) for case, (run, _) in cases.items()}, rounds, after_each)
        for case, times in taken.items():
            one = [took / _CALLS for took in times]
            held = cases[case][1]
            measured.append(Measurement.of(one, case, ONE_TOKEN, n, batch, peer=case == "sdpa", cache_bytes=held))
    shape = f"batch {batch}, {heads} heads of {head_dim}, float32"
    return BenchRecord.new("decode", shape, rounds, torch.get_num_threads(), limits, measured)


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
