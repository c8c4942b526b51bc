"""What a cache of so many bits can remember, and what congestion does and does not say about it."""

import itertools
import math

import numpy as np

import resolvent as rv
from resolvent.analysis import congestion
from resolvent.analysis.lower_bounds import cut_bound
from resolvent.analysis.routing import Routing, verify
from tests.oracles import STRIDES, cache_efficient_sets, strides_below, translation_invariant_sets


def test_the_future_reads_only_what_is_held() -> None:
    """Later tokens see the past through the held positions alone; cache-efficient ones need each of them."""
    for name in STRIDES:
        n, p = 60, rv.pattern(f"stride:{name}")
        strides = strides_below(STRIDES[name], n)
        for sets, pattern in (
            (translation_invariant_sets(strides, n), p),
            (cache_efficient_sets(strides, n), p.cache_efficient()),
        ):
            for s in range(n):
                read = {j for sources in sets[s:] for j in sources if j < s}
                assert read <= set(pattern.held(s).tolist())
                if pattern.contiguous_columns:
                    assert read == sets[s] == set(pattern.held(s).tolist())


def continuations(p: rv.Pattern, size: int, s: int, horizon: int) -> int:
    """How many futures tell prefixes of s tokens apart, if a state is one of `size` symbols and mixing is modular."""
    rows = [p.sources(i).tolist() for i in range(horizon)]
    futures = set()
    for prefix in itertools.product(range(size), repeat=s):
        y: list[int] = []
        for i, sources in enumerate(rows):
            x = prefix[i] if i < s else 0
            y.append((x + sum((1 + (i * j) % (size - 1)) * y[j] for j in sources)) % size)
        futures.add(tuple(y[s:]))
    return len(futures)


def test_prefixes_told_apart_are_at_most_the_states() -> None:
    """V^s prefixes, but only V^(positions held) contents of the cache: the rest cannot be copied."""
    for spec in ["first-order", "order:2", "exponential+cache", "quadratic+cache", "dense"]:
        for size, s in [(2, 9), (3, 6)]:
            p = rv.pattern(spec)
            told_apart, states = continuations(p, size, s, 3 * s), size ** len(p.held(s))
            assert told_apart <= min(states, size**s)
            if spec == "first-order":
                assert told_apart == size  # a chain meets the bound


def test_one_path_per_token_is_not_necessary() -> None:
    """2^k copying three tokens: congestion 2, yet tokens of four bits pass through states of seven, not eight."""
    p, bits = rv.exponential(), 4
    assert congestion(p, 3, effort="exact").lower == 2
    middles = [(1, 2, 3), (1, 2, 4), (1, 3, 4), (2, 3, 4)]  # where each bit of the three tokens rests
    loads = np.zeros(6, dtype=np.int64)
    for middle in middles:
        routing = Routing.from_paths([(token, node, token + 3) for token, node in enumerate(middle)])
        verify(p, routing)
        loads += routing.loads()
    assert len(middles) == bits
    assert loads.max() == 7 < 2 * bits


def test_where_the_cut_is_met_congestion_is_necessary() -> None:
    """(C - 1) tokens, at least, must fit into one state: the mean load at the narrowest cut is no less."""
    for n in [64, 256, 1024]:
        for spec in ["exponential+cache", "quadratic+cache", "order:8", "first-order"]:
            p = rv.pattern(spec)
            mean_load = max(min(s, n) / len(p.held(s)) for s in range(1, n + 1))
            assert cut_bound(p, n) - 1 <= mean_load <= cut_bound(p, n)


def test_capacity_of_a_cache_as_stated() -> None:
    layer = rv.Mixer(dim=256, heads=4, pattern="exponential+cache")
    cache = layer.make_cache(batch=1, max_tokens="128k")
    numbers = sum(t[0, :, 0].numel() for t in cache.tensors.values())
    assert (cache.nbytes, numbers) == (69_632, 1024)
    assert math.floor(8 * cache.nbytes / math.log2(50_257)) == 35_669
