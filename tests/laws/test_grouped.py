"""Grouped queries are repeated heads, and keys that decide nothing may be missing: values, gradients, every split."""

from collections.abc import Callable
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import resolvent as rv
from resolvent.ops import Cache
from tests.operator_cases import (
    BY_GATE,
    JOINT,
    PATTERNS,
    TABLE,
    Inputs,
    Spec,
    assert_all_close,
    assert_close,
    backends,
    cut,
    extend,
    gradients,
    mix,
    mix_changed,
    mixer_inputs,
)
from tests.sequence_cases import EVERY, N, few, splits

Run = Callable[[Inputs], Tensor]
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


def cache_for(spec: Spec, inputs: Inputs, **options: object) -> Cache:
    batch, groups, _, d = inputs["x"].shape
    heads, dk = inputs["gate"].shape[1], inputs["ka"].shape[-1]
    return rv.decode_cache(spec, batch, heads, d, dk, dtype=torch.float64, kv_heads=groups, **options)


def check_gradients(run: Run, other: Run, inputs: Inputs) -> None:
    assert_all_close(gradients(run, inputs), gradients(other, inputs))


@EVERY
def test_mix(spec: Spec) -> None:
    for groups, heads in PAIRS:
        check_mix(spec, groups, heads)


def check_mix(spec: Spec, groups: int, heads: int) -> None:
    inputs = grouped_inputs(N, groups, heads, d=5, dk=7)
    for backend in backends(spec):
        check_gradients(
            lambda t, b=backend: mix(t, spec, backend=b),
            lambda t, b=backend: mix(spread_out(t), spec, backend=b),
            inputs,
        )
    options: list[dict[str, object]] = [{"start": [0, 9]}, {"cu_seqlens": [0, 20, N]}, JOINT]
    p = rv.pattern(spec)
    can_be_tied = p.recurrent and len(p.stages) == 1
    for option in [*options, {"tied": torch.rand(heads).double()}] if can_be_tied else options:
        assert_close(mix(inputs, spec, **option), mix(spread_out(inputs), spec, **option))


@EVERY
@given(sizes=splits, widths=st.sampled_from([(5, 7), (16, 32)]), pair=st.sampled_from(PAIRS))
@few
def test_decoding(spec: Spec, sizes: list[int], widths: tuple[int, int], pair: tuple[int, int]) -> None:
    inputs = grouped_inputs(N, *pair, d=widths[0], dk=widths[1])
    for backend in backends(spec):
        expected = mix(spread_out(inputs), spec, backend=backend)
        assert_close(decoded(spec, inputs, sizes, backend), expected)


def decoded(spec: Spec, inputs: Inputs, sizes: list[int], backend: str = "auto", **options: object) -> Tensor:
    p = rv.pattern(spec)
    own = p.with_diagonal_a() if "tied" in options else p  # the matrix A of a tied pair is not read
    cache = cache_for(own, inputs, **{name: options.get(name, usual) for name, usual in BY_GATE.items()})
    options["backend"] = backend
    edges = [0]
    for size in sizes:
        edges.append(min(edges[-1] + size, N))
    edges = sorted({*edges, *range(edges[-1], N + 1)})
    return torch.cat([extend(cut(inputs, a, b), spec, cache, **options) for a, b in pairwise(edges)], 2)


@pytest.mark.parametrize("spec", ["dense", "exponential", "quadratic+cache", "first-order", "order:4"])
@given(sizes=splits)
@few
def test_decoding_with_options(spec: str, sizes: list[int]) -> None:
    inputs = grouped_inputs(N, 2, 4)
    for option in (JOINT, {"tied": 0.5}, {"tied": torch.linspace(0, 2, 4).double()}):
        assert_close(decoded(spec, inputs, sizes, **option), mix(spread_out(inputs), spec, **option))


@pytest.mark.parametrize(
    "spec", ["attention", "quadratic+cache", "first-order", "offsets:2,5", TABLE, "local:8/exponential+cache"]
)
def test_gradients_through_a_cache(spec: Spec) -> None:
    inputs = grouped_inputs(30, 2, 4)

    def in_chunks(t: Inputs) -> Tensor:
        cache = cache_for(spec, inputs)
        return torch.cat([extend(cut(t, a, b), spec, cache) for a, b in pairwise([0, 1, 12, 13, 30])], 2)

    check_gradients(in_chunks, lambda t: mix(spread_out(t), spec), inputs)


@pytest.mark.parametrize("spec", ["order:600", "local:600", "dense"])
def test_heads_of_a_group_in_several_threads(spec: str) -> None:
    """Where a token takes the slot of one that it reads, all heads must have read it first."""
    n, heads, threads = 700, 8, torch.get_num_threads()
    inputs = grouped_inputs(n, 1, heads, batch=1)
    cache = cache_for(spec, inputs)
    expected = mix(spread_out(inputs), spec)
    extend(cut(inputs, 0, n - 60), spec, cache)
    try:
        torch.set_num_threads(4)
        tokens = [extend(cut(inputs, i, i + 1), spec, cache) for i in range(n - 60, n)]
    finally:
        torch.set_num_threads(threads)
    assert_close(torch.cat(tokens, 2), expected[:, :, n - 60 :])


def test_sequences_at_different_positions() -> None:
    spec, inputs = "exponential+cache", grouped_inputs(N, 2, 4, batch=3)
    starts, cache = [7, 0, 20], cache_for("exponential+cache", inputs)
    parts = [extend(cut(inputs, 0, 20), spec, cache, start=starts)]
    parts += [extend(cut(inputs, i, i + 1), spec, cache) for i in range(20, 30)]
    parts += [extend(cut(inputs, 30, N), spec, cache)]
    assert_close(torch.cat(parts, 2), mix(spread_out(inputs), spec, start=starts))
    nothing = {name: t[:0] for name, t in inputs.items()}
    assert extend(nothing, spec, cache_for(spec, nothing)).shape == (0, 4, N, 16)


def test_the_cache_is_smaller() -> None:
    """Values and keys once per group, outputs once per head."""
    sizes = [rv.DecodeCache("dense", 1, 8, 16, 32, max_tokens=101, kv_heads=groups).nbytes for groups in (8, 2, None)]
    assert sizes == [4 * 100 * (8 * (16 + 32 + 32) + 8 * 16), 4 * 100 * (2 * (16 + 32 + 32) + 8 * 16), sizes[0]]
    cache = rv.DecodeCache("attention", 1, 8, 16, 16, max_tokens=101, kv_heads=1)
    assert cache.nbytes * 8 == rv.DecodeCache("attention", 1, 8, 16, 16, max_tokens=101).nbytes
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
        ({"pattern": "first-order", "gate": five[..., 0]}, r"expected gate of shape \(2, 4, 8\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            mix_changed(inputs, "exponential", change)
    with pytest.raises(ValueError, match="expected a cache with kv_heads=2, as x has, got one with 4"):
        extend(inputs, "dense", rv.DecodeCache("dense", 2, 4, 16, 16, dtype=torch.float64))
    for wrong in (3, 0, 8):
        with pytest.raises(ValueError, match=f"heads to be a multiple of kv_heads, got heads=4, kv_heads={wrong}"):
            rv.DecodeCache("dense", 2, 4, 16, 16, kv_heads=wrong)


def keyless(inputs: Inputs) -> Inputs:
    return {name: t for name, t in inputs.items() if name not in ("qb", "kb")}


@pytest.mark.parametrize("spec", KEYLESS)
def test_keys_that_decide_nothing(spec: str) -> None:
    """None, or whatever, for qb and kb; with a diagonal A and a gate, also for qa and ka."""
    for groups, kind in ((2, BY_GATE), (4, JOINT)):
        check_keyless(spec, groups, kind)


def check_keyless(spec: str, groups: int, kind: dict[str, object]) -> None:
    inputs = grouped_inputs(N, groups, 4, d=5, dk=7)
    for backend in backends(spec):
        check_gradients(
            lambda t, b=backend: mix(t, spec, **kind, backend=b),
            lambda t, b=backend: mix({**t, "qb": inputs["qb"], "kb": inputs["kb"]}, spec, **kind, backend=b),
            keyless(inputs),
        )
    bare = rv.pattern(spec).direct == "diagonal" and kind == BY_GATE
    unused = ("qa", "ka", "qb", "kb") if bare else ("qb", "kb")
    inputs = {name: t for name, t in inputs.items() if name not in unused}
    expected = mix(inputs, spec, **kind)
    for backend in ("cpu", "torch"):
        cache = rv.DecodeCache(spec, 2, 4, 5, 7, dtype=torch.float64, kv_heads=groups, **kind)
        edges = pairwise([0, 1, 3, 20, 21, N])
        parts = [extend(cut(inputs, a, b), spec, cache, **kind, backend=backend) for a, b in edges]
        assert_close(torch.cat(parts, 2), expected)
    if bare:  # no score is computed from what stands in for the keys: products would overflow
        large = {"x": 1e30 * inputs["x"].float(), "gate": inputs["gate"].float()}
        assert_close(mix(large, spec, backend="torch").double() / 1e30, expected, torch.float32)


def test_one_stride_one_source() -> None:
    for spec in [*PATTERNS, *KEYLESS, "offsets:3,7+cache", "offsets:4,5+cache", "local:2", "local:3"]:
        (p,) = rv.pattern(spec).stages
        assert p.reads_several == any(p.reads(i) > 1 for i in range(500)), spec
    assert rv.pattern("offsets:1,2000000").reads_several


def test_missing_keys_are_named_where_they_matter() -> None:
    inputs = keyless(mixer_inputs(8, torch.float64))
    with pytest.raises(ValueError, match=r"order:2 needs b=\(q, k\): expected tensors, got None"):
        mix(inputs, "order:2")
    with pytest.raises(ValueError, match=r"first-order needs a=\(q, k\)"):
        mix({"x": inputs["x"], "gate": 0.5}, "first-order", **JOINT)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(mix, backend="aot_eager", fullgraph=True)
    inputs = grouped_inputs(9, 2, 4)
    check_gradients(lambda t: compiled(t, "exponential"), lambda t: mix(t, "exponential"), inputs)
    bare = {name: inputs[name] for name in ("x", "gate")}
    check_gradients(lambda t: compiled(t, "first-order"), lambda t: mix(t, "first-order"), bare)
