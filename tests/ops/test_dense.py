"""The dense backend is the reference, in blocks: values, gradients, second derivatives, and never n² memory."""

from itertools import product

import pytest
import torch
from torch import Tensor

from resolvent.ops import dense, reference
from resolvent.ops.dense import blocks as dense_blocks
from resolvent.ops.rows import Rows, rows_of
from resolvent.patterns import pattern
from tests.laws.test_backends import check_solve
from tests.operator_cases import (
    TOLERANCE,
    Inputs,
    Largest,
    assert_all_close,
    assert_close,
    gradients,
    run_on,
)

SPECS = ["dense", "dense+diagonal", "dense+cache", "attention"]
LENGTHS = [1, 2, 63, 70]  # of blocks of 16; whole blocks are among the laws


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks even in short sequences, by the fused kernels and by what stands in for them elsewhere."""
    monkeypatch.setattr(dense_blocks, "BLOCK", 16)
    monkeypatch.setattr(dense_blocks, "_fused", lambda _: request.param)


def mixer_inputs(n: int, heads: int = 2, d: int = 5, dk: int = 7, known: int = 0) -> Inputs:
    torch.manual_seed(n)
    sizes = {"x": (known + n, d), "qa": (n, dk), "ka": (known + n, dk), "qb": (n, dk), "kb": (known + n, dk)}
    inputs = {name: torch.randn(1, heads, *size).double() for name, size in sizes.items()}
    inputs["gate"] = torch.rand(1, heads, n).double()
    if known:
        inputs["y_known"] = torch.randn(1, heads, known, d).double()
    return inputs


def check(inputs: Inputs, rows: Rows) -> None:
    found, exact = (gradients(lambda t, m=module: run_on(m, t, rows), inputs) for module in (dense, reference))
    assert_all_close(found, exact)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_definition_and_gradients(spec: str) -> None:
    """At the edges of blocks, with arbitrary rows before that have gradients as well, and packed."""
    p = pattern(spec)
    for n in LENGTHS:
        check(mixer_inputs(n), rows_of(p, (0, n)))
    check(mixer_inputs(21, known=19), rows_of(p, (0, 21), 19))
    check(mixer_inputs(40), rows_of(p, (0, 3, 3, 4, 10, 40)))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_solve(spec: str) -> None:
    check_solve(spec, 37)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_extreme_scores_and_gates(spec: str) -> None:
    """Scores of ±10⁴, all scores equal, gates at 0 and 1: finite, and rows of T still sum to one."""
    n = 70
    for size, dtype in product((0.0, 1e4), (torch.float64, torch.float32)):
        inputs = {k: t.to(dtype) for k, t in mixer_inputs(n).items()}
        inputs["qa"], inputs["qb"] = inputs["qa"] * size, inputs["qb"] * size
        inputs["x"] = torch.ones_like(inputs["x"])
        inputs["gate"] = (torch.arange(n) % 3 / 2).clamp(max=1).to(dtype).expand(1, 2, n)
        y, found = gradients(lambda t: run_on(dense, t, rows_of(pattern(spec), (0, n)), 1.0), inputs)
        assert_close(y, torch.ones_like(y))
        assert all(t.isfinite().all() for t in found.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    rows = rows_of(pattern("dense"), (0, 150))
    inputs = {k: t.to(dtype) for k, t in mixer_inputs(150).items()}
    single = {k: t.float() for k, t in inputs.items()}
    y, exact = run_on(dense, inputs, rows), run_on(dense, single, rows)
    assert y.dtype == dtype
    once = torch.finfo(dtype).eps  # rounded once, at the end: the table would let every step be rounded
    torch.testing.assert_close(y.float(), exact, rtol=once, atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize(("spec", "known"), [(spec, 2) for spec in SPECS] + [("dense", 0)])
def test_derivatives_twice(spec: str, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_blocks, "BLOCK", 2)
    rows = rows_of(pattern(spec), (0, 5), known)
    inputs = mixer_inputs(5, heads=1, d=2, dk=3, known=known)
    used = [k for k in inputs if pattern(spec).recurrent or k in ("x", "qa", "ka")]
    if pattern(spec).direct == "diagonal":
        used = [k for k in used if k not in ("qa", "ka")]
    rest = {k: t for k, t in inputs.items() if k not in used}

    def run(*tensors: Tensor) -> Tensor:
        return run_on(dense, {**dict(zip(used, tensors, strict=True)), **rest}, rows)

    leaves = [inputs[k].requires_grad_() for k in used]
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("spec", SPECS)
def test_memory_is_never_quadratic(spec: str) -> None:
    n, heads = 1024, 3
    inputs = {k: t.float() for k, t in mixer_inputs(n, heads=heads, d=16, dk=16).items()}
    with Largest() as largest:
        gradients(lambda t: run_on(dense, t, rows_of(pattern(spec), (0, n)), 0.25), inputs)
    assert largest.elements <= heads * n * dense_blocks.BLOCK
