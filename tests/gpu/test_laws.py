"""The kernels of the `triton` backend are the reference: interpreted, on a CPU, in a process of their own.

`make gpu` runs this with TRITON_INTERPRET=1. Values and every gradient, over kinds of patterns, sizes of blocks, odd
lengths and dtypes, at the tolerances of all backends; and what else a backend must not do.
"""

import ast
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.bench import gpu_check
from resolvent.ops import triton
from resolvent.ops.triton import interpreting
from resolvent.ops.triton.launch import recording
from resolvent.ops.triton.sizes import Sizes, using
from tests.operator_cases import (
    BY_GATE,
    FEW_READS,
    JOINT,
    PAIRED,
    TABLE,
    Inputs,
    Spec,
    assert_all_close,
    assert_close,
    by_matrices,
    cut,
    extend,
    gradients,
    mix,
    mixer_inputs,
    solve,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not interpreting(), reason="needs TRITON_INTERPRET=1 and a process of its own"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # NumPy's, of infinities and NaN
]
STRIDED = ["exponential", "quadratic", "offsets:2,5", "offsets:3+diagonal", "exponential+attention"]
ALIVE = [
    "exponential+cache",
    "quadratic+cache",
    "stride:3*k+2+cache",
    "fenwick",
    "binomial:4",
    "first-order",
    "local:5",
]
LISTED: list[Spec] = [TABLE, FEW_READS]
KINDS: list[Spec] = [*STRIDED, *ALIVE, *LISTED, *PAIRED[1:]]
CORE = ["exponential", "quadratic+cache", FEW_READS]  # one of each kind
ON = {"backend": "triton"}


def core_first(specs: list[Spec]) -> list[Any]:
    """One of each kind always, all by command (`make gpu-test`): the interpreter is slow."""
    return [spec if spec in CORE else pytest.param(spec, marks=pytest.mark.slow) for spec in specs]


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    """So that few tokens make several blocks."""
    with using(Sizes(16, 16, chunk=32)):
        yield


def exact(spec: Spec, inputs: Inputs) -> tuple[Tensor, Inputs]:
    doubles = {name: t.double() for name, t in inputs.items()}
    return gradients(lambda t: by_matrices(t, spec, inputs["qa"].shape[-1] ** -0.5), doubles)


def check(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> None:
    given = {name: t.to(dtype) for name, t in inputs.items()}
    found = gradients(lambda t: mix(t, spec, **ON), given)
    assert found[0].dtype == dtype
    assert_all_close(found, exact(spec, inputs), dtype)


@pytest.mark.parametrize("spec", KINDS)
def test_every_kind_of_pattern(spec: Spec) -> None:
    check(spec, mixer_inputs(53, torch.float64, 1, 1), torch.float64)


@pytest.mark.parametrize("spec", core_first(KINDS))
@pytest.mark.parametrize("n", [1, 2])
def test_short_sequences(spec: Spec, n: int) -> None:
    check(spec, mixer_inputs(n, torch.float64, 1, 2), torch.float64)


@pytest.mark.parametrize("spec", CORE)
@pytest.mark.parametrize(("block", "slopes"), [(16, 16), (32, 32), (64, 64), (32, 16)])
def test_every_size_of_block(spec: Spec, block: int, slopes: int) -> None:
    """Gradients of scores in smaller blocks than outputs, too, as the table of sizes has them."""
    with using(Sizes(block, 16, slopes=slopes)):
        check(spec, mixer_inputs(2 * block + 17, torch.float64, 1, 1), torch.float64)


@pytest.mark.parametrize("spec", CORE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype(spec: Spec, dtype: torch.dtype) -> None:
    check(spec, mixer_inputs(41, dtype, 1, 2), dtype)


@pytest.mark.parametrize("spec", [*CORE, "exponential+cache"])
def test_wide_heads(spec: Spec) -> None:
    """Scores in parts, as float32 and half precision have them; float64 would not take the same."""
    check(spec, mixer_inputs(37, torch.float32, 1, 1, 80, 80), torch.float32)  # two chunks
    check(spec, mixer_inputs(20, torch.float16, 1, 1, 40, 130), torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("spec", CORE)
@pytest.mark.parametrize(("d", "dk"), [(1, 3), (24, 16), (80, 64), (40, 130)])
def test_every_dimension(spec: Spec, d: int, dk: int) -> None:
    """Padded to powers of two, and channels shared out among programs."""
    check(spec, mixer_inputs(35, torch.float64, 1, 1, d, dk), torch.float64)


@pytest.mark.parametrize("spec", core_first(KINDS))
def test_packed(spec: Spec) -> None:
    """Empty sequences and sequences of one token among them."""
    edges = [0, 19, 19, 20, 57]
    inputs = mixer_inputs(57, torch.float64, 1, 1)

    def alone(t: Inputs) -> Tensor:
        return torch.cat([mix(cut(t, a, b), spec) for a, b in pairwise(edges) if b > a], 2)

    found = gradients(lambda t: mix(t, spec, cu_seqlens=edges, **ON), inputs)
    assert_all_close(found, gradients(alone, inputs))


@pytest.mark.parametrize("spec", CORE)
def test_padded_on_the_left(spec: Spec) -> None:
    inputs, starts = mixer_inputs(37, torch.float64, 3, 1), [0, 20, 37]
    for t in inputs.values():
        for b, start in enumerate(starts):
            t[b, :, :start] = math.nan
    assert_all_close(
        gradients(lambda t: mix(t, spec, start=starts, **ON), inputs),
        gradients(lambda t: mix(t, spec, start=starts, backend="torch"), inputs),
    )


@pytest.mark.parametrize("spec", core_first([*CORE, "exponential+cache", "offsets:3+diagonal", "local:5", *PAIRED[1:]]))
def test_in_chunks(spec: Spec) -> None:
    """Known rows from a cache: outputs, and gradients that flow through it."""
    inputs = mixer_inputs(60, torch.float64, 1, 1)

    def in_chunks(t: Inputs) -> Tensor:
        cache = rv.decode_cache(spec, 1, 1, 5, 7, dtype=torch.float64)
        return torch.cat([extend(cut(t, a, b), spec, cache, **ON) for a, b in pairwise([0, 21, 22, 60])], 2)

    assert_all_close(gradients(in_chunks, inputs), exact(spec, inputs))


@pytest.mark.parametrize("spec", KINDS)
@pytest.mark.parametrize("max_tokens", [pytest.param(None, marks=pytest.mark.slow), 34])
def test_decoding(spec: Spec, max_tokens: int | None) -> None:
    """A prefill, then token by token; slots that hold nothing are NaN, and the cache may grow on the way."""
    inputs = mixer_inputs(34, torch.float64, 1, 2, 5, 7)
    expected = by_matrices(inputs, spec, 7**-0.5)
    cache = rv.decode_cache(spec, 1, 2, 5, 7, dtype=torch.float64, max_tokens=max_tokens)
    for t in cache.tensors.values():
        t.fill_(math.nan)
    edges = [0, 19, *range(20, 35)]
    with torch.no_grad():
        parts = [extend(cut(inputs, a, b), spec, cache, **ON) for a, b in pairwise(edges)]
    assert_close(torch.cat(parts, 2), expected)


@pytest.mark.parametrize("spec", CORE)
def test_decoding_sequences_at_different_positions(spec: Spec) -> None:
    """Padded prompts, single tokens, a rewind and another order of rows: counters follow the cache."""
    inputs, starts = mixer_inputs(40, torch.float64, 3, 2, 16, 16), [7, 0, 20]
    cache = rv.decode_cache(spec, 3, 2, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        parts = [extend(cut(inputs, 0, 20), spec, cache, start=starts, **ON)]
        parts += [extend(cut(inputs, i, i + 1), spec, cache, **ON) for i in range(20, 26)]
        cache.snapshot()
        extend(cut(inputs, 0, 1), spec, cache, **ON)
        cache.rewind([26 - start for start in starts])
        parts += [extend(cut(inputs, i, i + 1), spec, cache, **ON) for i in range(26, 30)]
        swapped = cache.reorder([2, 1, 0])
        after = [
            extend(cut({k: t.flip(0) for k, t in inputs.items()}, i, i + 1), spec, swapped, **ON) for i in range(30, 34)
        ]
    y = torch.cat([*parts, *(t.flip(0) for t in after)], 2)
    for b, start in enumerate(starts):
        expected = mix(cut(inputs, start, 34, slice(b, b + 1)), spec, backend="torch")
        assert_close(y[b : b + 1, :, start:], expected)


@pytest.mark.parametrize("spec", ["exponential+cache", "quadratic", "local:5/exponential+cache"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_grouped_heads(spec: Spec, dtype: torch.dtype) -> None:
    """Four heads of queries on two of keys and values, in `mix` and token by token."""
    inputs = mixer_inputs(30, dtype, 2, 4, 8, 8)
    shared = {name: t[:, ::2] if name in ("x", "ka", "kb") else t for name, t in inputs.items()}
    repeated = {name: t.repeat_interleave(2, 1) if name in ("x", "ka", "kb") else t for name, t in shared.items()}
    expected = by_matrices({name: t.double() for name, t in repeated.items()}, spec, 8**-0.5)
    assert_close(mix(shared, spec, **ON), expected)
    cache = rv.decode_cache(spec, 2, 4, 8, 8, dtype=dtype, kv_heads=2)
    with torch.no_grad():
        parts = [extend(cut(shared, i, i + 1), spec, cache, **ON) for i in range(30)]
    assert_close(torch.cat(parts, 2), expected, factor=1 if dtype == torch.float32 else 3)  # rounded at each token


@pytest.mark.parametrize("spoiled", ["x", "qa", "ka", "qb", "kb", "gate"])
@pytest.mark.parametrize("spec", ["exponential", "exponential+cache"])
def test_nan_is_never_swallowed(spec: str, spoiled: str) -> None:
    """Nor does it come to sequences, or blocks, before it."""
    inputs = mixer_inputs(50, torch.float32, 1, 1)
    inputs[spoiled][:, :, 21] = math.nan
    bad = mix(inputs, spec, **ON)[0, 0].isnan().any(-1)
    assert not bad[:16].any()
    assert bad[22 if spoiled == "kb" else 21]


@pytest.mark.parametrize("spec", CORE)
def test_extreme_scores_and_gates(spec: Spec) -> None:
    """Scores of ±10⁴, gates at 0 and 1: finite, and rows of T still sum to one."""
    n = 50
    inputs = mixer_inputs(n, torch.float32, 1, 1)
    for name in ("qa", "qb"):
        inputs[name] = inputs[name] * 1e4
    inputs["x"] = torch.ones_like(inputs["x"])
    inputs["gate"] = (torch.arange(n) % 3 / 2).clamp(max=1).expand(1, 1, n).contiguous()
    y, found = gradients(lambda t: mix(t, spec, scale=1.0, **ON), inputs)
    assert_close(y, torch.ones_like(y))
    assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache"])
def test_tied(spec: Spec) -> None:
    inputs = mixer_inputs(40, torch.float64, 1, 1)
    tied = gradients(lambda t: mix(t, spec, tied=0.3, **ON, **BY_GATE), inputs)
    assert_all_close(tied, gradients(lambda t: mix(t, spec, tied=0.3, backend="torch", **BY_GATE), inputs))


def test_coefficients_that_are_given_are_refused() -> None:
    x, ones = torch.ones(1, 1, 8, 1), torch.ones(1, 1, 8, 1) / 2
    with pytest.raises(ValueError, match=r"takes neither others nor joint ones\. Backends that can: cpu"):
        solve(x, "first-order", ones, ones, **ON)
    with pytest.raises(ValueError, match=r"takes neither others nor joint ones\. Backends that can: cpu"):
        mix(mixer_inputs(8, torch.float64, 1, 1), "exponential", **ON, **JOINT)


def test_heads_take_turns_where_scratch_would_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from resolvent.ops.triton import launch

    inputs = mixer_inputs(40, torch.float64, 2, 2)
    for spec in ("exponential", "quadratic+cache"):
        together = gradients(lambda t, s=spec: mix(t, s, **ON), inputs)
        with monkeypatch.context() as patch:
            patch.setattr(launch, "LARGEST_SCRATCH", 1)
            apart = gradients(lambda t, s=spec: mix(t, s, **ON), inputs)
        assert torch.equal(together[0], apart[0])
        assert all(torch.equal(together[1][name], apart[1][name]) for name in inputs)


@pytest.mark.parametrize("spec", ["exponential+cache", pytest.param("local:5/order:8", marks=pytest.mark.slow)])
def test_steps_of_blocks_where_heads_are_many(spec: Spec) -> None:
    """Without chunks, which few heads take: values, gradients, packed and chunks of a prompt."""
    with using(Sizes(16, 16, chunk=0)):
        check(spec, mixer_inputs(53, torch.float64, 1, 1), torch.float64)
        test_packed(spec)
        test_in_chunks(spec)


@pytest.mark.parametrize("chunk", [16, 64])
def test_every_size_of_chunk(chunk: int) -> None:
    """Chunks of one block and of several, the last of them shorter; half precision is fed back unrounded."""
    with using(Sizes(16, 16, chunk=chunk)):
        check("exponential+cache", mixer_inputs(2 * chunk + 21, torch.float32, 1, 1), torch.float32)
        check("order:2", mixer_inputs(chunk + 21, torch.float16, 1, 1), torch.float16)


def test_gpu_check_runs_every_kernel() -> None:
    """What a user's GPU is asked: each kernel is among it, and all pass here."""
    with using(Sizes(16, 16, chunk=32)), recording(run=True) as record:
        found = list(gpu_check.checks(torch.device("cpu"), small=True))
    assert [one for one in found if not one.passed] == []
    modules = ("forward_pass", "chunk_pass", "backward_pass", "decode_step")
    assert {one.kernel for one in record} == {kernel for module in modules for kernel in kernels_of(module)}


def test_gpu_check_times_and_tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the clock, which is the GPU's: every case runs, and the fastest sizes are those that a file may name."""

    def by_launches(run: Callable[[], object], _: int) -> float:
        with recording() as record:
            run()
        return float(len(record))

    def does_not_compile() -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(gpu_check, "_milliseconds", by_launches)
    monkeypatch.setattr(gpu_check, "_flex", lambda *_: does_not_compile)
    device = torch.device("cpu")
    with using(Sizes(16, 16, chunk=32)):
        found = {timing.name: timing for timing in gpu_check.timings(device, [20], heads=1, d=16, rounds=1)}
    for spec in gpu_check.TIMED:
        timing = found[f"{spec}, triton"]
        assert (timing.forward_ms, timing.both_ms) == (2, 7 + (spec == "exponential+cache"))  # chunks are carried back
        assert f"{spec}, torch" in found
        assert f"FlexAttention on {spec}: RuntimeError" in found
    assert "FlashAttention (sdpa)" in found
    monkeypatch.setattr(gpu_check, "_both_ms", lambda sizes, *_: abs(sizes.block - 32) + sizes.chunk / 1000)
    tuned = gpu_check.tune(device, 20, 1, 16, 1)
    assert tuned["sizes"]["block"] == 32
    assert tuned["sizes"]["chunk"] == 0


def kernels_of(module: str) -> list[str]:
    """Functions that are launched: those that say which numbers they are not compiled for."""
    tree = ast.parse(Path(triton.__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f"{module}.{node.name}" for node in functions if isinstance(node.decorator_list[0], ast.Call)]


def test_autocast() -> None:
    """Mixed precision goes through it: the dtypes of other backends, and values as near."""
    inputs = mixer_inputs(30, torch.float32, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = (mix(inputs, "exponential+cache", backend=backend) for backend in ("triton", "torch"))
    assert mine.dtype == theirs.dtype
    assert_close(mine, theirs.double())


def test_derivatives_of_derivatives_and_vmap() -> None:
    inputs = mixer_inputs(18, torch.float64, 1, 1, 3, 3)

    def run(x: Tensor, gate: Tensor) -> Tensor:
        return mix(inputs | {"x": x, "gate": gate}, "exponential", **ON)

    x, gate = (inputs[name].clone().requires_grad_() for name in ("x", "gate"))
    assert torch.autograd.gradgradcheck(run, (x, gate), fast_mode=True)
    several = torch.stack([inputs["x"], 2 * inputs["x"]])
    mapped = torch.func.vmap(lambda x: run(x, inputs["gate"]))(several)
    assert_close(mapped[1], 2 * run(inputs["x"], inputs["gate"]))


def test_traced() -> None:
    """`torch.compile` holds the backend by name, and gets the same outputs and gradients."""
    inputs = mixer_inputs(33, torch.float64, 1, 1)

    def run(t: Inputs) -> Tensor:
        return mix(t, "quadratic+cache", **ON)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_all_close(gradients(compiled, inputs), gradients(run, inputs))
