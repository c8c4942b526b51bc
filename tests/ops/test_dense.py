"""The dense backend is the reference, in blocks: values, gradients, second derivatives, and never n² memory."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from resolvent.ops import dense, dense_blocks, reference
from resolvent.ops.rows import Rows, rows
from resolvent.patterns import pattern

SPECS = ["dense", "dense+diagonal", "dense+cache", "attention"]
LENGTHS = [1, 2, 63, 70]  # of blocks of 16; whole blocks are among the laws
NAMES = ["x", "qa", "ka", "qb", "kb", "gate"]
SCALE = 7**-0.5

Inputs = dict[str, Tensor]


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


def gradients(run: Callable[..., Tensor], inputs: Inputs) -> Inputs:
    """The output, and the gradient of a fixed random functional of it for every input."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    y = run(**leaves)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    found = torch.autograd.grad(y, list(leaves.values()), weights, materialize_grads=True, allow_unused=True)
    return {"y": y.detach(), **dict(zip(leaves, found, strict=True))}


def assert_same(found: Inputs, expected: Inputs, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        size = max(exact.abs().max().item(), 1.0) if exact.numel() else 1.0
        torch.testing.assert_close(found[name], exact, rtol=0, atol=tolerance * size, msg=lambda m, n=name: f"{n}: {m}")


def both(inputs: Inputs, where: Rows) -> tuple[Inputs, Inputs]:
    return (
        gradients(lambda **t: dense.mix(**t, where=where, scale=SCALE), inputs),
        gradients(lambda **t: reference.mix(**t, where=where, scale=SCALE), inputs),
    )


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_mix(spec: str, n: int) -> None:
    assert_same(*both(mixer_inputs(n), rows(pattern(spec), (0, n))))


@pytest.mark.parametrize(("d", "dk"), [(1, 3), (3, 1), (4, 4)])
@pytest.mark.usefixtures("small_blocks")
def test_mix_in_any_dimension(d: int, dk: int) -> None:
    assert_same(*both(mixer_inputs(20, d=d, dk=dk), rows(pattern("dense"), (0, 20))))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_known_rows(spec: str) -> None:
    """Arbitrary rows before, with gradients for them as well."""
    assert_same(*both(mixer_inputs(21, known=19), rows(pattern(spec), (0, 21), 19)))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_continuing_is_the_full_run(spec: str) -> None:
    n, p = 50, pattern(spec)
    inputs = mixer_inputs(n)
    whole = dense.mix(**inputs, where=rows(p, (0, n)), scale=SCALE)
    y = whole[..., :0, :]
    for start, stop in [(0, 1), (1, 20), (20, 21), (21, n)]:
        part = {k: t[:, :, (0 if k in ("x", "ka", "kb") else start) : stop] for k, t in inputs.items()}
        more = dense.mix(**part, where=rows(p, (0, stop - start), start), scale=SCALE, y_known=y)
        y = torch.cat([y, more], dim=2)
    torch.testing.assert_close(y, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_packed_sequences_are_each_alone(spec: str) -> None:
    cuts, p = (0, 3, 3, 4, 10, 40), pattern(spec)
    inputs = mixer_inputs(40)

    def alone(**t: Tensor) -> Tensor:
        spans = [slice(a, b) for a, b in pairwise(cuts) if a < b]
        return torch.cat(
            [
                reference.mix(
                    **{k: v[:, :, s] for k, v in t.items()}, where=rows(p, (0, s.stop - s.start)), scale=SCALE
                )
                for s in spans
            ],
            dim=2,
        )

    found = gradients(lambda **t: dense.mix(**t, where=rows(p, cuts), scale=SCALE), inputs)
    assert_same(found, gradients(alone, inputs))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("cuts", "position"), [((0, 1), 0), ((0, 37), 0), ((0, 3, 3, 4, 24), 0), ((0, 20), 17)])
@pytest.mark.parametrize("spec", SPECS)
def test_solve(spec: str, cuts: tuple[int, ...], position: int) -> None:
    """Signed coefficients; what lies beyond a row's sources is NaN and must not matter."""
    p, n = pattern(spec), cuts[-1]
    where = rows(p, cuts, position)
    torch.manual_seed(n)
    absent = torch.from_numpy(where.table) < 0
    inputs = {"x": torch.randn(1, 2, position + n, 5), "alpha": torch.randn(1, 2, n, 1 + where.width)}
    inputs["alpha"][..., 1:][..., absent] = math.nan
    if p.direct == "diagonal":
        inputs["alpha"] = inputs["alpha"][..., :1]
    if p.recurrent:
        inputs["beta"] = torch.randn(1, 2, n, where.width) / max(where.width, 1)
        inputs["beta"][..., absent] = math.nan
    if position:
        inputs["y_known"] = torch.randn(1, 2, position, 5)
    inputs = {name: t.double() for name, t in inputs.items()}

    def run(backend: Any) -> Inputs:
        return gradients(lambda beta=None, **t: backend.solve(**t, beta=beta, where=where), inputs)

    assert_same(run(dense), run(reference))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_is_torchs(dtype: torch.dtype) -> None:
    inputs = {k: t.to(dtype) for k, t in mixer_inputs(300, d=8, dk=8).items()}
    found = dense.mix(**inputs, where=rows(pattern("attention"), (0, 300)), scale=8**-0.5)
    expected = scaled_dot_product_attention(inputs["qa"], inputs["ka"], inputs["x"], is_causal=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    where = rows(pattern("dense"), (0, 150))
    inputs = {k: t.to(dtype) for k, t in mixer_inputs(150).items()}
    single = {k: t.float() for k, t in inputs.items()}
    y = dense.mix(**inputs, where=where, scale=SCALE)
    assert torch.equal(y, dense.mix(**single, where=where, scale=SCALE).to(dtype))


@pytest.mark.parametrize(("spec", "known"), [(spec, 2) for spec in SPECS] + [("dense", 0)])
def test_derivatives_twice(spec: str, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_blocks, "BLOCK", 2)
    where = rows(pattern(spec), (0, 5), known)
    inputs = mixer_inputs(5, heads=1, d=2, dk=3, known=known)
    used = [k for k in inputs if pattern(spec).recurrent or k in ("x", "qa", "ka")]
    if pattern(spec).direct == "diagonal":
        used = [k for k in used if k not in ("qa", "ka")]
    rest = {k: t for k, t in inputs.items() if k not in used}

    def run(*tensors: Tensor) -> Tensor:
        return dense.mix(**dict(zip(used, tensors, strict=True)), **rest, where=where, scale=SCALE)

    leaves = [inputs[k].requires_grad_() for k in used]
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def test_functional_gradients() -> None:
    inputs, where = mixer_inputs(20), rows(pattern("dense"), (0, 20))
    expected = gradients(lambda **t: reference.mix(**t, where=where, scale=SCALE).sum(), inputs)
    for name in NAMES:
        rest = {k: t for k, t in inputs.items() if k != name}
        found = torch.func.grad(lambda t, n=name, r=rest: dense.mix(**{n: t}, **r, where=where, scale=SCALE).sum())
        weight = torch.randn((), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(found(inputs[name]) * weight, expected[name], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("small_blocks")
def test_extreme_scores_and_gates(spec: str, dtype: torch.dtype) -> None:
    """Scores of ±10⁴, all scores equal, gates at 0 and 1: finite, and rows of T still sum to one."""
    n = 70
    for size in (0.0, 1e4):
        inputs = {k: t.to(dtype) for k, t in mixer_inputs(n).items()}
        inputs["qa"], inputs["qb"] = inputs["qa"] * size, inputs["qb"] * size
        inputs["x"] = torch.ones_like(inputs["x"])
        inputs["gate"] = (torch.arange(n) % 3 / 2).clamp(max=1).to(dtype).expand(1, 2, n)
        found = gradients(lambda **t: dense.mix(**t, where=rows(pattern(spec), (0, n)), scale=1.0), inputs)
        torch.testing.assert_close(found["y"], torch.ones_like(found["y"]), rtol=1e-5, atol=1e-5)
        assert all(t.isfinite().all() for t in found.values())


def test_layouts() -> None:
    inputs, where = mixer_inputs(40), rows(pattern("dense"), (0, 40))
    expected = dense.mix(**inputs, where=where, scale=SCALE)
    swapped = {k: t.transpose(1, 2).contiguous().transpose(1, 2) for k, t in inputs.items()}
    assert torch.equal(dense.mix(**swapped, where=where, scale=SCALE), expected)
    batch = {k: t.expand(3, *t.shape[1:]) for k, t in inputs.items()}
    assert torch.equal(dense.mix(**batch, where=where, scale=SCALE)[2], expected[0])


def test_nothing_to_do() -> None:
    inputs, p = mixer_inputs(4), pattern("dense")
    assert dense.mix(**{k: t[:0] for k, t in inputs.items()}, where=rows(p, (0, 4)), scale=1.0).shape == (0, 2, 4, 5)
    empty = {k: t[:, :, :0] for k, t in inputs.items()}
    assert dense.mix(**empty, where=rows(p, (0, 0, 0)), scale=1.0).shape == (1, 2, 0, 5)


@pytest.mark.parametrize("spec", ["exponential", "order:3", "local:4", "quadratic+cache"])
def test_sparse_patterns_are_refused(spec: str) -> None:
    where, inputs = rows(pattern(spec), (0, 4)), mixer_inputs(4)
    with pytest.raises(ValueError, match=r"every token reads every earlier one.*got .*use backend='cpu' or 'torch'"):
        dense.mix(**inputs, where=where, scale=1.0)
    with pytest.raises(ValueError, match="every token reads every earlier one"):
        dense.solve(inputs["x"], inputs["qa"], inputs["qb"], where)


class _Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation gave."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *(t.untyped_storage().nbytes() // t.element_size() for t in tensors)])
        return result


@pytest.mark.parametrize("spec", SPECS)
def test_memory_is_never_quadratic(spec: str) -> None:
    n, heads = 1024, 3
    inputs = {k: t.float() for k, t in mixer_inputs(n, heads=heads, d=16, dk=16).items()}
    with _Largest() as largest:
        gradients(lambda **t: dense.mix(**t, where=rows(pattern(spec), (0, n)), scale=0.25), inputs)
    assert largest.elements <= heads * n * dense_blocks.BLOCK
