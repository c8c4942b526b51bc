"""Grouped queries are repeated heads, and keys that decide nothing may be missing: values, gradients, every split."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import resolvent as rv
from resolvent.analysis.cost import reads_several
from tests.laws.test_backends import FAST, PATTERNS, Inputs, can, gradients, mixer_inputs
from tests.laws.test_sequences import EVERY, N, assert_same, cut, few, splits

SHARED = ("x", "ka", "kb")
KEYLESS = ["first-order", "order:1", "offsets:3+diagonal", "order:1+cache"]
PAIRS = [(1, 4), (2, 6)]


def grouped_inputs(n: int, groups: int, heads: int, batch: int = 2, d: int = 16, dk: int = 16) -> Inputs:
    inputs = mixer_inputs(n, torch.float64, batch, heads, d, dk)
    return {name: t[:, :groups].clone() if name in SHARED else t for name, t in inputs.items()}


def spread_out(inputs: Inputs) -> Inputs:
    """As many heads for all."""
    share = inputs["gate"].shape[1] // inputs["x"].shape[1]
    return {name: t.repeat_interleave(share, 1) if name in SHARED else t for name, t in inputs.items()}


def cache_for(spec: str | rv.Pattern, inputs: Inputs, **options: object) -> rv.DecodeCache:
    batch, groups, _, d = inputs["x"].shape
    heads, dk = inputs["gate"].shape[1], inputs["ka"].shape[-1]
    return rv.DecodeCache(spec, batch, heads, d, dk, dtype=torch.float64, kv_heads=groups, **options)


def check_gradients(run: object, other: object, inputs: Inputs) -> None:
    y, found = gradients(run, inputs)
    expected, slopes = gradients(other, inputs)
    assert_same(y, expected)
    for name in found:
        assert_same(found[name], slopes[name])


def backends(spec: str) -> list[str]:
    return [backend for backend in FAST if can(backend, spec)]


@EVERY
@pytest.mark.parametrize(("groups", "heads"), PAIRS)
def test_mix(spec: str, groups: int, heads: int) -> None:
    inputs = grouped_inputs(N, groups, heads, d=5, dk=7)
    for backend in backends(spec):
        check_gradients(
            lambda b=backend, **t: rv.mix(**t, p=spec, backend=b),
            lambda b=backend, **t: rv.mix(**spread_out(t), p=spec, backend=b),
            inputs,
        )
    options: list[dict[str, object]] = [{"start": [0, 9]}, {"cu_seqlens": [0, 20, N]}, {"normalise": "whole"}]
    for option in [*options, {"tied": torch.rand(heads).double()}] if rv.pattern(spec).recurrent else options:
        assert_same(rv.mix(**inputs, p=spec, **option), rv.mix(**spread_out(inputs), p=spec, **option))


@EVERY
@given(sizes=splits, widths=st.sampled_from([(5, 7), (16, 32)]), pair=st.sampled_from(PAIRS))
@few
def test_decoding(spec: str, sizes: list[int], widths: tuple[int, int], pair: tuple[int, int]) -> None:
    inputs = grouped_inputs(N, *pair, d=widths[0], dk=widths[1])
    for backend in backends(spec):
        expected = rv.mix(**spread_out(inputs), p=spec, backend=backend)
        assert_same(decoded(spec, inputs, sizes, backend), expected)


def decoded(spec: str, inputs: Inputs, sizes: list[int], backend: str = "auto", **options: object) -> Tensor:
    p = rv.pattern(spec)
    own = replace(p, direct="diagonal") if "tied" in options else p  # the matrix A of a tied pair is not read
    cache = cache_for(own, inputs, normalise=options.get("normalise", "gate"))
    options["backend"] = backend
    edges = [0]
    for size in sizes:
        edges.append(min(edges[-1] + size, N))
    edges = sorted({*edges, *range(edges[-1], N + 1)})
    return torch.cat([rv.extend(**cut(inputs, a, b), p=spec, cache=cache, **options) for a, b in pairwise(edges)], 2)


@pytest.mark.parametrize("spec", ["dense", "exponential", "quadratic+cache", "first-order", "order:4"])
@given(sizes=splits)
@few
def test_decoding_with_options(spec: str, sizes: list[int]) -> None:
    inputs = grouped_inputs(N, 2, 4)
    for option in ({"normalise": "whole"}, {"tied": 0.5}):
        assert_same(decoded(spec, inputs, sizes, **option), rv.mix(**spread_out(inputs), p=spec, **option))


@pytest.mark.parametrize("spec", ["attention", "quadratic+cache", "first-order", "offsets:2,5"])
def test_gradients_through_a_cache(spec: str) -> None:
    inputs = grouped_inputs(30, 2, 4)

    def in_chunks(**t: Tensor) -> Tensor:
        cache = cache_for(spec, inputs)
        return torch.cat([rv.extend(**cut(t, a, b), p=spec, cache=cache) for a, b in pairwise([0, 1, 12, 13, 30])], 2)

    check_gradients(in_chunks, lambda **t: rv.mix(**spread_out(t), p=spec), inputs)


@pytest.mark.parametrize("spec", ["order:600", "local:600", "dense"])
def test_heads_of_a_group_in_several_threads(spec: str) -> None:
    """Where a token takes the slot of one that it reads, all heads must have read it first."""
    n, heads, threads = 700, 8, torch.get_num_threads()
    inputs = grouped_inputs(n, 1, heads, batch=1)
    cache = cache_for(spec, inputs)
    expected = rv.mix(**spread_out(inputs), p=spec)
    rv.extend(**cut(inputs, 0, n - 60), p=spec, cache=cache)
    try:
        torch.set_num_threads(4)
        tokens = [rv.extend(**cut(inputs, i, i + 1), p=spec, cache=cache) for i in range(n - 60, n)]
    finally:
        torch.set_num_threads(threads)
    assert_same(torch.cat(tokens, 2), expected[:, :, n - 60 :])


def test_sequences_at_different_positions() -> None:
    spec, inputs = "exponential+cache", grouped_inputs(N, 2, 4, batch=3)
    starts, cache = [7, 0, 20], cache_for("exponential+cache", inputs)
    parts = [rv.extend(**cut(inputs, 0, 20), p=spec, cache=cache, start=starts)]
    parts += [rv.extend(**cut(inputs, i, i + 1), p=spec, cache=cache) for i in range(20, 30)]
    parts += [rv.extend(**cut(inputs, 30, N), p=spec, cache=cache)]
    assert_same(torch.cat(parts, 2), rv.mix(**spread_out(inputs), p=spec, start=starts))
    nothing = {name: t[:0] for name, t in inputs.items()}
    assert rv.extend(**nothing, p=spec, cache=cache_for(spec, nothing)).shape == (0, 4, N, 16)


def test_the_cache_is_smaller() -> None:
    """Values and keys once per group, outputs once per head."""
    sizes = [rv.DecodeCache("dense", 1, 8, 16, 32, tokens=101, kv_heads=groups).nbytes for groups in (8, 2, None)]
    assert sizes == [4 * 100 * (8 * (16 + 32 + 32) + 8 * 16), 4 * 100 * (2 * (16 + 32 + 32) + 8 * 16), sizes[0]]
    cache = rv.DecodeCache("attention", 1, 8, 16, 16, tokens=101, kv_heads=1)
    assert cache.nbytes * 8 == rv.DecodeCache("attention", 1, 8, 16, 16, tokens=101).nbytes
    assert cache.repeat(2).kv_heads == 1


def test_heads_that_do_not_fit() -> None:
    inputs = grouped_inputs(8, 2, 4)
    five = torch.rand(2, 5, 8, 16).double()
    for change, message in [
        ({"qa": five}, "expected qa with as many heads as x, which has 2, or a multiple .*, got 5"),
        ({"x": five}, "expected qa with as many heads as x, which has 5, or a multiple .*, got 4"),
        ({"qb": five}, r"expected qb of shape \(2, 4, 8, 16\)"),
        ({"ka": five}, r"expected ka of shape \(2, 2, 8, 16\)"),
        ({"gate": inputs["gate"][:, :2]}, r"expected gate of shape \(2, 4, 8\)"),
        ({"p": "first-order", "gate": five[..., 0]}, "expected gate with as many heads as x, which has 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            rv.mix(**{"p": "exponential", **inputs, **change})
    with pytest.raises(ValueError, match="expected a cache with kv_heads=2, as x has, got one with 4"):
        rv.extend(**inputs, p="dense", cache=rv.DecodeCache("dense", 2, 4, 16, 16, dtype=torch.float64))
    for wrong in (3, 0, 8):
        with pytest.raises(ValueError, match=f"heads to be a multiple of kv_heads, got heads=4, kv_heads={wrong}"):
            rv.DecodeCache("dense", 2, 4, 16, 16, kv_heads=wrong)


def keyless(inputs: Inputs) -> Inputs:
    return {name: t for name, t in inputs.items() if name not in ("qb", "kb")}


@pytest.mark.parametrize("spec", KEYLESS)
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("normalise", ["gate", "whole"])
def test_keys_that_decide_nothing(spec: str, groups: int, normalise: str) -> None:
    """None, or whatever, for qb and kb; with a diagonal A and a gate, also for qa and ka."""
    inputs = grouped_inputs(N, groups, 4, d=5, dk=7)
    options: dict[str, object] = {"p": spec, "normalise": normalise}
    for backend in backends(spec):
        check_gradients(
            lambda b=backend, **t: rv.mix(**t, qb=None, kb=None, **options, backend=b),
            lambda b=backend, **t: rv.mix(**t, qb=inputs["qb"], kb=inputs["kb"], **options, backend=b),
            keyless(inputs),
        )
    bare = rv.pattern(spec).direct == "diagonal" and normalise == "gate"
    if bare:
        inputs["qa"] = inputs["ka"] = None
    inputs["qb"] = inputs["kb"] = None
    expected = rv.mix(**inputs, **options)
    for backend in ("cpu", "torch"):
        cache = rv.DecodeCache(spec, 2, 4, 5, 7, dtype=torch.float64, normalise=normalise, kv_heads=groups)
        parts = []
        for a, b in pairwise([0, 1, 3, 20, 21, N]):
            chunk = {name: None if t is None else t[:, :, a:b] for name, t in inputs.items()}
            parts.append(rv.extend(**chunk, **options, cache=cache, backend=backend))
        assert_same(torch.cat(parts, 2), expected)
    if bare:  # no score is computed from what stands in for the keys: products would overflow
        large = 1e30 * inputs["x"].float()
        y = rv.mix(large, None, None, None, None, inputs["gate"].float(), spec, backend="torch")
        assert_same(y.double() / 1e30, expected, 1e-5)


@pytest.mark.parametrize("spec", [*PATTERNS, *KEYLESS, "offsets:3,7+cache", "offsets:4,5+cache", "local:2", "local:3"])
def test_one_stride_one_source(spec: str) -> None:
    p = rv.pattern(spec)
    assert reads_several(p) == any(p.reads(i) > 1 for i in range(500))
    assert reads_several(rv.pattern("offsets:1,2000000"))


def test_missing_keys_are_named_where_they_matter() -> None:
    inputs = keyless(mixer_inputs(8, torch.float64))
    with pytest.raises(ValueError, match="order:2 needs qb, kb: expected tensors, got None"):
        rv.mix(**inputs, qb=None, kb=None, p="order:2")
    with pytest.raises(ValueError, match="first-order needs qa, ka"):
        rv.mix(inputs["x"], None, None, None, None, 0.5, "first-order", normalise="whole")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(rv.mix, backend="aot_eager", fullgraph=True)
    inputs = grouped_inputs(9, 2, 4)
    check_gradients(lambda **t: compiled(**t, p="exponential"), lambda **t: rv.mix(**t, p="exponential"), inputs)
    check_gradients(
        lambda x, gate: compiled(x, None, None, None, None, gate, "first-order"),
        lambda x, gate: rv.mix(x, None, None, None, None, gate, "first-order"),
        {name: inputs[name] for name in ("x", "gate")},
    )
