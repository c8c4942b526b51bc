"""However a sequence is cut up, packed, padded or decoded: the outputs and gradients are those of the plain run."""

import math
from itertools import accumulate, pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import resolvent as rv
from resolvent.ops import Cache
from tests.operator_cases import (
    FEW_READS,
    JOINT,
    PAIRED,
    SPARSE,
    TABLE,
    TOLERANCE,
    Inputs,
    Spec,
    assert_all_close,
    assert_close,
    cut,
    extend,
    extend_changed,
    gradients,
    mix,
    mixer_inputs,
    normalization,
)
from tests.sequence_cases import EVERY, N, few, splits


def cache_for(spec: Spec, inputs: Inputs, **options: object) -> Cache:
    x, k = inputs["x"], inputs["ka"]
    return rv.decode_cache(spec, x.shape[0], x.shape[1], x.shape[-1], k.shape[-1], dtype=x.dtype, **options)


def decoded(spec: Spec, inputs: Inputs, sizes: list[int], backend: str = "auto", **options: object) -> Tensor:
    """`extend` over chunks of these sizes, and the rest token by token."""
    n = inputs["x"].shape[2]
    cache = cache_for(spec, inputs, **options)
    edges = [edge for edge in accumulate([size for size in sizes if size], initial=0) if edge < n]
    edges += range(edges[-1] + 1, n + 1)
    kind = normalization(cache)
    parts = [extend(cut(inputs, a, b), spec, cache, backend=backend, **kind) for a, b in pairwise(edges)]
    assert cache.positions.tolist() == [n] * cache.batch
    return torch.cat(parts, 2)


@EVERY
@given(sizes=splits, widths=st.sampled_from([(5, 7), (16, 32)]))
@few
def test_decoding(spec: Spec, sizes: list[int], widths: tuple[int, int]) -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 2, *widths)
    expected = mix(inputs, spec)
    for backend in ("auto", "torch"):
        assert_close(decoded(spec, inputs, sizes, backend), expected)
    assert_close(decoded(spec, inputs, sizes, max_tokens=N), expected)


@EVERY
@given(sizes=splits)
@few
def test_packing(spec: Spec, sizes: list[int]) -> None:
    """Empty sequences and sequences of one token among them."""
    n = max(sum(sizes), 1)
    inputs = mixer_inputs(n, torch.float64, 1, 2)
    edges = list(accumulate(sizes if sum(sizes) else [1], initial=0))
    pairs = [(a, b) for a, b in pairwise(edges) if b > a]

    def alone(t: Inputs) -> Tensor:
        return torch.cat([mix(cut(t, a, b), spec) for a, b in pairs], 2)

    expected = gradients(alone, inputs)
    for backend in ("auto", *SPARSE):
        found = gradients(lambda t, b=backend: mix(t, spec, cu_seqlens=torch.tensor(edges), backend=b), inputs)
        assert_all_close(found, expected, what=backend)


@EVERY
@given(starts=st.lists(st.integers(0, N), min_size=3, max_size=3))
@few
def test_padding_on_the_left(spec: Spec, starts: list[int]) -> None:
    """What lies in the padding does not matter, even NaN; outputs and gradients there are zero."""
    inputs = mixer_inputs(N, torch.float64, 3, 2)
    for name, t in inputs.items():
        for b, start in enumerate(starts):
            inputs[name][b, :, :start] = math.nan
            assert name != "x" or t[b, :, start:].isfinite().all()
    y, found = gradients(lambda t: mix(t, spec, start=starts), inputs)
    for b, start in enumerate(starts):
        assert (y[b, :, :start] == 0).all()
        assert all((gradient[b, :, :start] == 0).all() for gradient in found.values())
        if start < N:
            assert_close(y[b : b + 1, :, start:], mix(cut(inputs, start, N, slice(b, b + 1)), spec))


@EVERY
def test_sequences_at_different_positions(spec: Spec) -> None:
    """A padded prefill, single tokens, then a chunk: each sequence goes on from its own position."""
    inputs = mixer_inputs(N, torch.float64, 3, 2, 16, 16)
    starts, cache = [7, 0, 20], cache_for(spec, inputs)
    parts = [extend(cut(inputs, 0, 20), spec, cache, start=starts)]
    parts += [extend(cut(inputs, i, i + 1), spec, cache) for i in range(20, 30)]
    parts += [extend(cut(inputs, 30, N), spec, cache)]
    assert cache.positions.tolist() == [N - start for start in starts]
    y = torch.cat(parts, 2)
    for b, start in enumerate(starts):
        assert_close(y[b : b + 1, :, start:], mix(cut(inputs, start, N, slice(b, b + 1)), spec))
        assert (y[b, :, :start] == 0).all()


@pytest.mark.parametrize("spec", PAIRED)
def test_a_sequence_of_padding_alone_beside_others(spec: str) -> None:
    """With one softmax over all of T, A's stage hands on a mass beside its outputs: of no tokens, too."""
    inputs = mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    starts, cache = [20, 3], cache_for(spec, inputs, **JOINT)
    parts = [extend(cut(inputs, 0, 20), spec, cache, start=starts, **JOINT)]
    y = torch.cat([*parts, extend(cut(inputs, 20, N), spec, cache, **JOINT)], 2)
    for b, start in enumerate(starts):
        assert_close(y[b : b + 1, :, start:], mix(cut(inputs, start, N, slice(b, b + 1)), spec, **JOINT))
        assert (y[b, :, :start] == 0).all()


@EVERY
def test_gradients_through_a_cache(spec: Spec) -> None:
    inputs = mixer_inputs(30, torch.float64)

    def in_chunks(t: Inputs, backend: str) -> Tensor:
        cache, chunks = cache_for(spec, inputs), pairwise([0, 1, 12, 13, 30])
        return torch.cat([extend(cut(t, a, b), spec, cache, backend=backend) for a, b in chunks], 2)

    exact = gradients(lambda t: mix(t, spec), inputs)
    for backend in SPARSE:
        assert_all_close(gradients(lambda t, b=backend: in_chunks(t, b), inputs), exact, what=backend)


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "dense", "local:8/exponential+cache"])
def test_gradients_through_a_cache_of_the_joint_softmax(spec: str) -> None:
    """Those that flow into the logarithms of earlier tokens, too."""
    inputs = mixer_inputs(30, torch.float64)

    def in_chunks(t: Inputs) -> Tensor:
        cache = cache_for(spec, inputs, **JOINT)
        return torch.cat([extend(cut(t, a, b), spec, cache, **JOINT) for a, b in pairwise([0, 1, 12, 13, 30])], 2)

    assert_all_close(gradients(in_chunks, inputs), gradients(lambda t: mix(t, spec, **JOINT), inputs))


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "first-order", "local:3", FEW_READS, *PAIRED])
@given(sizes=splits)
@few
def test_decoding_with_the_joint_softmax(spec: Spec, sizes: list[int]) -> None:
    inputs = mixer_inputs(N, torch.float64)
    expected = mix(inputs, spec, **JOINT)
    assert_close(decoded(spec, inputs, sizes, **JOINT), expected)


@pytest.mark.parametrize("spec", ["exponential+cache", "exponential/order:8", TABLE])
def test_decoding_in_other_dtypes(spec: Spec) -> None:
    """Half precision rounds what it keeps, outputs among it: so much, and not more."""
    for dtype, factor in ((torch.float32, 0.25), (torch.bfloat16, 1.5)):
        inputs = mixer_inputs(N, dtype, 2, 2, 16, 16)
        y, whole = decoded(spec, inputs, [9]), mix(inputs, spec)
        assert (y - whole).abs().max() < factor * TOLERANCE[dtype]


@EVERY
def test_the_cache_is_as_large_as_promised(spec: Spec) -> None:
    """For n tokens: `analyze`'s bytes, of a pair for each stage, before the first token and after the last."""
    n, heads, dim = 200, 2, 16
    stages = rv.pattern(spec).stages
    cache = rv.decode_cache(spec, 1, heads, dim, dim, max_tokens=n)
    promised = rv.cost(rv.pattern(spec), n, heads=heads, head_dim=dim).cache_bytes
    assert cache.nbytes == promised == 4 * heads * dim * sum(len(s.needs().cached) * s.slots(n) for s in stages)
    inputs = mixer_inputs(n, torch.float32, 1, heads, dim, dim)
    for i in range(0, n, 50):
        extend(cut(inputs, i, i + 50), spec, cache)
    assert cache.nbytes == promised
    with pytest.raises(ValueError, match="made for 200 tokens, got 201"):
        extend(cut(inputs, 0, 1), spec, cache)
    assert cache.positions.tolist() == [n]


@pytest.mark.parametrize(("spec", "rule"), [
    ("attention", "softmax"), ("local:3", "softmax"), ("quadratic", "joint"), ("first-order", "mamba2"),
    ("first-order", "linear"), ("exponential+cache", "softmax:conv=3"),
])  # fmt: skip
def test_a_cache_leaves_inference_mode(spec: str, rule: str) -> None:
    """A prompt is read under `torch.inference_mode()`; what follows need not be, and may ask for gradients."""
    for grad in (False, True):
        check_inference_mode(spec, rule, grad=grad)


def check_inference_mode(spec: str, rule: str, *, grad: bool) -> None:
    layer, x = rv.Mixer(8, 2, spec, rule=rule).double(), torch.randn(2, 30, 8).double()
    expected = layer(x)
    with torch.inference_mode():
        _, cache = layer.extend(x[:, :9])
        cache.snapshot()
    for first, last in ((9, 10), (10, 12), (12, 30)):
        with torch.set_grad_enabled(grad):
            y, _ = layer.extend(x[:, first:last], cache)
        assert_close(y, expected[:, first:last])
        assert y.requires_grad == grad
    if grad:
        y.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    cache.rewind(9)
    with torch.no_grad():
        assert_close(layer.extend(x[:, 9:], cache)[0], expected[:, 9:])


def test_a_pair_has_two_caches() -> None:
    inputs = mixer_inputs(9, torch.float64)
    with pytest.raises(ValueError, match=r"has slots for A and others for B.*decode_cache\('local:8/exponential'"):
        rv.DecodeCache("local:8/exponential", 2, 3, 5, 7)
    cache = cache_for("local:8/exponential", inputs)
    for other, message in [
        ("local:8/quadratic", r"expected a cache of local:8/quadratic, got one of local:8/exponential\+diagonal"),
        ("local:8", "expected a cache of local:8, got one of local:8/exponential"),
    ]:
        with pytest.raises(ValueError, match=message):
            extend(inputs, other, cache)
    with pytest.raises(ValueError, match=r"expected a cache that decode_cache\(pattern, …\) has made, got Caches"):
        extend(inputs, "local:8", rv.Mixer(32, 2, ["local:8", "dense"]).make_cache())
    assert cache.positions.tolist() == [0, 0]


def test_patterns_that_end() -> None:
    """A cache grows up to the last token, whichever way it gets there, and says so beyond."""
    p = rv.explicit(lambda i: range(max(i - 3, 0), i), n=100)
    inputs = mixer_inputs(101, torch.float64, 1, 2)
    for spec in (p, rv.pair("attention", p)):
        expected = mix(cut(inputs, 0, 100), spec)
        cache = cache_for(spec, inputs)
        parts = [extend(cut(inputs, a, b), spec, cache) for a, b in pairwise([0, 60, 70, *range(71, 101)])]
        assert_close(torch.cat(parts, 2), expected)
        with pytest.raises(ValueError, match="is defined for 100 tokens: expected at most as many, got 101"):
            extend(cut(inputs, 100, 101), spec, cache)
        assert cache.positions.tolist() == [100]
        with pytest.raises(ValueError, match="is defined for 100 tokens"):
            cache_for(spec, inputs, max_tokens=101)
        with pytest.raises(rv.PatternError, match="is defined for 100 tokens"):
            mix(inputs, spec)
        assert_close(mix(inputs, spec, cu_seqlens=[0, 50, 101])[:, :, :50], expected[:, :, :50])


def test_a_cache_that_does_not_fit_is_refused_untouched() -> None:
    inputs = mixer_inputs(4, torch.float32)
    cache = cache_for("exponential", inputs)
    extend(inputs, "exponential", cache)
    before = {name: part.clone() for name, part in cache.tensors.items()}
    for change, error, message in [
        ({"pattern": "exponential+cache"}, ValueError, r"a cache of exponential\+cache, got one of exponential"),
        ({name: t[:1] for name, t in inputs.items()}, ValueError, "expected a cache for B, H, D, D'"),
        ({name: t.double() for name, t in inputs.items()}, TypeError, "cache's values as torch.float64"),
        (JOINT, ValueError, "expected a cache with normalize='joint', got one with 'gate'"),
    ]:
        with pytest.raises(error, match=message):
            extend_changed(inputs, "exponential", cache, change)
    assert all(torch.equal(part, before[name]) for name, part in cache.tensors.items())
    assert cache.positions.tolist() == [4, 4]
    own, other = rv.strided(lambda k: k + 1), rv.strided(lambda k: 2 * k + 1)  # two functions of one name
    with pytest.raises(ValueError, match="expected a cache of stride"):
        extend(inputs, other, cache_for(own, inputs))
    with pytest.raises(ValueError, match="expected normalize 'gate' or 'joint', got 'half'"):
        cache_for("exponential", inputs, normalize="half")


def test_a_full_cache_counts_tokens_not_padding() -> None:
    inputs = mixer_inputs(24, torch.float64, 2, 2)
    cache = cache_for("exponential", inputs, max_tokens=20)
    y = extend(inputs, "exponential", cache, start=[4, 6])
    assert_close(y, mix(inputs, "exponential", start=[4, 6]))
    nothing = {name: t[:0] for name, t in inputs.items()}
    assert extend(nothing, "exponential", cache_for("exponential", nothing)).shape == (0, 2, 24, 5)
