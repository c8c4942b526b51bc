"""However a sequence is cut up, packed, padded or decoded: the outputs and gradients are those of the plain run."""

import math
from itertools import accumulate, pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import resolvent as rv
from tests.laws.test_backends import PATTERNS, SPARSE, Inputs, gradients, mixer_inputs

N = 48
EVERY = pytest.mark.parametrize("spec", [*PATTERNS, "dense+diagonal", "offsets:2,5+cache"])
splits = st.lists(st.integers(0, 12), min_size=1, max_size=12)
few = settings(max_examples=5, deadline=None, derandomize=True)


def cut(inputs: Inputs, first: int, last: int, rows: slice = slice(None)) -> Inputs:
    return {name: t[rows, :, first:last] for name, t in inputs.items()}


def cache_for(spec: str, inputs: Inputs, **options: object) -> rv.DecodeCache:
    x, k = inputs["x"], inputs["ka"]
    return rv.DecodeCache(spec, x.shape[0], x.shape[1], x.shape[-1], k.shape[-1], dtype=x.dtype, **options)


def decoded(spec: str, inputs: Inputs, sizes: list[int], backend: str = "auto", **options: object) -> Tensor:
    """`extend` over chunks of these sizes, and the rest token by token."""
    n = inputs["x"].shape[2]
    cache = cache_for(spec, inputs, **options)
    edges = [edge for edge in accumulate([size for size in sizes if size], initial=0) if edge < n]
    edges += range(edges[-1] + 1, n + 1)
    kind = {"normalise": options["normalise"]} if "normalise" in options else {}
    parts = [rv.extend(**cut(inputs, a, b), p=spec, cache=cache, backend=backend, **kind) for a, b in pairwise(edges)]
    assert cache.positions.tolist() == [n] * cache.batch
    return torch.cat(parts, 2)


def assert_same(mine: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(mine, expected, rtol=0, atol=tolerance * max(1.0, expected.abs().max().item()))


@EVERY
@given(sizes=splits, widths=st.sampled_from([(5, 7), (16, 32)]))
@few
def test_decoding(spec: str, sizes: list[int], widths: tuple[int, int]) -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 2, *widths)
    expected = rv.mix(**inputs, p=spec)
    for backend in ("auto", "torch"):
        assert_same(decoded(spec, inputs, sizes, backend), expected)
    assert_same(decoded(spec, inputs, sizes, tokens=N), expected)


@EVERY
@given(sizes=splits)
@few
def test_packing(spec: str, sizes: list[int]) -> None:
    """Empty sequences and sequences of one token among them."""
    n = max(sum(sizes), 1)
    inputs = mixer_inputs(n, torch.float64, 1, 2)
    edges = list(accumulate(sizes if sum(sizes) else [1], initial=0))
    pairs = [(a, b) for a, b in pairwise(edges) if b > a]

    def alone(**t: Tensor) -> Tensor:
        return torch.cat([rv.mix(**cut(t, a, b), p=spec) for a, b in pairs], 2)

    expected, slopes = gradients(alone, inputs)
    for backend in ("auto", *SPARSE):
        y, found = gradients(
            lambda b=backend, **t: rv.mix(**t, p=spec, cu_seqlens=torch.tensor(edges), backend=b), inputs
        )
        assert_same(y, expected)
        for name in found:
            assert_same(found[name], slopes[name])


@EVERY
@given(starts=st.lists(st.integers(0, N), min_size=3, max_size=3))
@few
def test_padding_on_the_left(spec: str, starts: list[int]) -> None:
    """What lies in the padding does not matter, even NaN; outputs and gradients there are zero."""
    inputs = mixer_inputs(N, torch.float64, 3, 2)
    for name, t in inputs.items():
        for b, start in enumerate(starts):
            inputs[name][b, :, :start] = math.nan
            assert name != "x" or t[b, :, start:].isfinite().all()
    y, found = gradients(lambda **t: rv.mix(**t, p=spec, start=starts), inputs)
    for b, start in enumerate(starts):
        assert (y[b, :, :start] == 0).all()
        assert all((gradient[b, :, :start] == 0).all() for gradient in found.values())
        if start < N:
            assert_same(y[b : b + 1, :, start:], rv.mix(**cut(inputs, start, N, slice(b, b + 1)), p=spec))


@EVERY
def test_sequences_at_different_positions(spec: str) -> None:
    """A padded prefill, single tokens, then a chunk: each sequence goes on from its own position."""
    inputs = mixer_inputs(N, torch.float64, 3, 2, 16, 16)
    starts, cache = [7, 0, 20], cache_for(spec, inputs)
    parts = [rv.extend(**cut(inputs, 0, 20), p=spec, cache=cache, start=starts)]
    parts += [rv.extend(**cut(inputs, i, i + 1), p=spec, cache=cache) for i in range(20, 30)]
    parts += [rv.extend(**cut(inputs, 30, N), p=spec, cache=cache)]
    assert cache.positions.tolist() == [N - start for start in starts]
    y = torch.cat(parts, 2)
    for b, start in enumerate(starts):
        assert_same(y[b : b + 1, :, start:], rv.mix(**cut(inputs, start, N, slice(b, b + 1)), p=spec))
        assert (y[b, :, :start] == 0).all()


@EVERY
@pytest.mark.parametrize("backend", SPARSE)
def test_gradients_through_a_cache(spec: str, backend: str) -> None:
    inputs = mixer_inputs(30, torch.float64)

    def in_chunks(**t: Tensor) -> Tensor:
        cache = cache_for(spec, inputs)
        edges = [0, 1, 12, 13, 30]
        chunks = pairwise(edges)
        return torch.cat([rv.extend(**cut(t, a, b), p=spec, cache=cache, backend=backend) for a, b in chunks], 2)

    expected, slopes = gradients(lambda **t: rv.mix(**t, p=spec), inputs)
    y, found = gradients(in_chunks, inputs)
    assert_same(y, expected)
    for name in found:
        assert_same(found[name], slopes[name])


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "first-order", "local:3"])
@given(sizes=splits)
@few
def test_decoding_with_the_whole_softmax(spec: str, sizes: list[int]) -> None:
    inputs = mixer_inputs(N, torch.float64)
    expected = rv.mix(**inputs, p=spec, normalise="whole")
    assert_same(decoded(spec, inputs, sizes, normalise="whole"), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_in_other_dtypes(dtype: torch.dtype) -> None:
    """Half precision rounds what it keeps, outputs among it: so much, and not more."""
    inputs = mixer_inputs(N, dtype, 2, 2, 16, 16)
    difference = decoded("exponential+cache", inputs, [9]) - rv.mix(**inputs, p="exponential+cache")
    assert difference.abs().max() < (5e-6 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_the_cache_is_as_large_as_promised(spec: str) -> None:
    """For n tokens: `analyze`'s slots and bytes, before the first token and after the last."""
    n, heads, dim = 200, 2, 16
    cache = rv.DecodeCache(spec, 1, heads, dim, dim, tokens=n)
    promised = rv.cost(rv.pattern(spec), n, heads=heads, head_dim=dim).cache_bytes
    assert (cache.nbytes, cache.slots) == (promised, rv.pattern(spec).slots(n))
    inputs = mixer_inputs(n, torch.float32, 1, heads, dim, dim)
    for i in range(0, n, 50):
        rv.extend(**cut(inputs, i, i + 50), p=spec, cache=cache)
    assert cache.nbytes == promised
    with pytest.raises(ValueError, match="made for 200 tokens, got 201"):
        rv.extend(**cut(inputs, 0, 1), p=spec, cache=cache)
    assert cache.positions.tolist() == [n]


def test_a_clone_goes_its_own_way() -> None:
    inputs = mixer_inputs(40, torch.float64, 1, 2, 16, 16)
    cache = cache_for("quadratic+cache", inputs)
    rv.extend(**cut(inputs, 0, 20), p="quadratic+cache", cache=cache)
    kept = cache.clone()
    first = rv.extend(**cut(inputs, 20, 40), p="quadratic+cache", cache=cache)
    assert torch.equal(rv.extend(**cut(inputs, 20, 40), p="quadratic+cache", cache=kept), first)


def test_a_cache_that_does_not_fit_is_refused_untouched() -> None:
    inputs = mixer_inputs(4, torch.float32)
    cache = cache_for("exponential", inputs)
    rv.extend(**inputs, p="exponential", cache=cache)
    before = {name: part.clone() for name, part in cache.parts.items()}
    for change, error, message in [
        ({"p": "exponential+cache"}, ValueError, r"a cache of exponential\+cache, got one of exponential"),
        ({name: t[:1] for name, t in inputs.items()}, ValueError, "expected a cache for B, H, D, D'"),
        ({name: t.double() for name, t in inputs.items()}, TypeError, "cache's values as torch.float64"),
        ({"normalise": "whole"}, ValueError, "expected a cache with normalise='whole', got one with 'gate'"),
    ]:
        with pytest.raises(error, match=message):
            rv.extend(**{"p": "exponential", "cache": cache, **inputs, **change})
    assert all(torch.equal(part, before[name]) for name, part in cache.parts.items())
    assert cache.positions.tolist() == [4, 4]
    own, other = rv.strided(lambda k: k + 1), rv.strided(lambda k: 2 * k + 1)  # two functions of one name
    with pytest.raises(ValueError, match="expected a cache of stride"):
        rv.extend(**inputs, p=other, cache=cache_for(own, inputs))
    with pytest.raises(ValueError, match="expected normalise 'gate' or 'whole', got 'half'"):
        cache_for("exponential", inputs, normalise="half")


def test_a_full_cache_counts_tokens_not_padding() -> None:
    inputs = mixer_inputs(24, torch.float64, 2, 2)
    cache = cache_for("exponential", inputs, tokens=20)
    y = rv.extend(**inputs, p="exponential", cache=cache, start=[4, 6])
    assert_same(y, rv.mix(**inputs, p="exponential", start=[4, 6]))
    nothing = {name: t[:0] for name, t in inputs.items()}
    assert rv.extend(**nothing, p="exponential", cache=cache_for("exponential", nothing)).shape == (0, 2, 24, 5)
