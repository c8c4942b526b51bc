"""Half precision on the kernels: what it costs in memory, and that nothing is rounded but inputs and results."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import resolvent as rv
from resolvent.ops import cpu
from resolvent.ops.inputs import Inputs as OperatorInputs
from resolvent.ops.rows import Rows
from tests.laws.test_backends import threads
from tests.operator_cases import NAMES, TABLE, Inputs, Spec, gradients, mix, mixer_inputs

HALF = [torch.bfloat16, torch.float16]
PATTERNS: list[Spec] = ["exponential", "quadratic+cache", "first-order", "local:8", TABLE]
PIECE = 4096  # rows


def many_heads(dtype: torch.dtype, d: int = 16) -> Inputs:
    """Of 14,400 rows in all."""
    return mixer_inputs(600, dtype, 2, 12, d, d)


def in_float32(inputs: Inputs) -> Inputs:
    return {name: t.float() for name, t in inputs.items()}


def assert_rounded(found: Inputs, exact: Inputs) -> None:
    """Gradients differ by half a unit in the last place, and by as much as float32 may."""
    for name, gradient in found.items():
        most = 0.52 * torch.finfo(gradient.dtype).eps * exact[name].abs() + 2e-5
        assert ((gradient.float() - exact[name]).abs() <= most).all(), name


@pytest.mark.parametrize("spec", PATTERNS)
def test_only_the_caller_s_tensors_are_saved(spec: Spec) -> None:
    """And beyond them at most what the outputs lack, in half precision, and four numbers a row."""
    for dtype in HALF:
        check_saved(spec, dtype)


def check_saved(spec: Spec, dtype: torch.dtype) -> None:
    inputs = {name: t.requires_grad_() for name, t in many_heads(dtype).items()}
    saved: dict[int, Tensor] = {}

    def keep(t: Tensor) -> Tensor:
        saved[t.untyped_storage().data_ptr()] = t
        return t

    with saved_tensors_hooks(keep, lambda t: t):
        y = mix(inputs, spec, backend="cpu")
    own = {t.untyped_storage().data_ptr() for t in (*inputs.values(), y)}
    others = [t for address, t in saved.items() if address not in own]
    x = inputs["x"]
    assert {t.dtype for t in others if t.numel() >= x.numel()} <= {dtype}
    most = x.nbytes + 4 * 4 * x[..., 0].numel()
    assert sum(t.untyped_storage().nbytes() for t in others) <= most


class Largest(TorchDispatchMode):
    """The most elements of a float32 tensor that this thread has seen an operation return."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        results = function(*arguments, **(options or {}))
        sizes = [t.numel() for t in tree_leaves(results) if isinstance(t, Tensor) and t.dtype == torch.float32]
        self.elements = max([self.elements, *sizes])
        return results


@pytest.mark.parametrize("spec", PATTERNS)
def test_a_piece_at_most_is_ever_in_float32(spec: Spec) -> None:
    for dtype in HALF:
        inputs = {name: t.requires_grad_() for name, t in many_heads(dtype).items()}
        with threads(1), Largest() as forward:
            y = mix(inputs, spec, backend="cpu")
        with threads(1), Largest() as backward:
            torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y), allow_unused=True)
        assert 0 < forward.elements <= PIECE * 16 < y.numel() / 3
        assert 0 < backward.elements <= PIECE * 16


@pytest.mark.parametrize("spec", PATTERNS)
def test_results_are_those_of_float32_rounded_once(spec: Spec) -> None:
    for dtype, d in ((torch.bfloat16, 5), (torch.bfloat16, 16), (torch.float16, 16)):
        inputs = many_heads(dtype, d)
        y, found = gradients(lambda t: mix(t, spec, backend="cpu"), inputs)
        exact, expected = gradients(lambda t, to=dtype: mix(t, spec, backend="cpu").to(to), in_float32(inputs))
        assert torch.equal(y, exact)
        assert_rounded(found, expected)


@pytest.mark.parametrize("dtype", HALF)
def test_packed_sequences(dtype: torch.dtype) -> None:
    """Of any lengths, so that pieces begin and end within heads."""
    inputs = many_heads(dtype)
    cuts = [0, 1, 2, 50, 51, 300, 301, 420, 600]
    for spec in PATTERNS:
        packed = mix(inputs, spec, backend="cpu", cu_seqlens=cuts)
        for before, after in pairwise(cuts):
            alone = {name: t[:, :, before:after] for name, t in inputs.items()}
            assert torch.equal(packed[:, :, before:after], mix(alone, spec, backend="cpu"))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "first-order"])
def test_outputs_that_are_known(spec: str, dtype: torch.dtype) -> None:
    """Rows after others that a cache would hold: with gradients for those, too."""
    (stage,), n, position = rv.pattern(spec).stages, 600, 100
    rows = Rows(stage, (0, n - position), position)
    x, qa, ka, qb, kb, gate = many_heads(dtype).values()
    first = mix({name: t[:, :, :position] for name, t in many_heads(dtype).items()}, spec, backend="cpu")
    before = torch.tensor(rows.held)
    held = torch.cat([before, torch.arange(position, n)])
    inputs = dict(zip(NAMES, (x[:, :, held], qa[:, :, position:], ka[:, :, held], qb[:, :, position:], kb[:, :, held],
                              gate[:, :, position:]), strict=True))  # fmt: skip
    inputs["known"] = first[:, :, before]

    def run(t: Inputs) -> Tensor:
        return cpu.mix(OperatorInputs(*(t[name] for name in NAMES)), rows, 0.25, t["known"])

    y, found = gradients(run, inputs)
    exact, expected = gradients(lambda t: run(t).to(dtype), in_float32(inputs))
    assert torch.equal(y, exact)
    assert_rounded(found, expected)


@pytest.mark.parametrize("spec", ["quadratic+cache", TABLE])
def test_same_bits_whatever_the_threads(spec: Spec) -> None:
    inputs = many_heads(torch.bfloat16)
    with threads(1):
        y, expected = gradients(lambda t: mix(t, spec, backend="cpu"), inputs)
    for count in (2, 7):
        with threads(count):
            again, found = gradients(lambda t: mix(t, spec, backend="cpu"), inputs)
        assert torch.equal(again, y)
        assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("spec", ["exponential", "first-order"])
def test_gradients_of_gates_do_not_suffer(spec: Spec) -> None:
    """A gate in float32 has a gradient in float32: of differences of outputs, which rounded ones would not show."""
    inputs = many_heads(torch.bfloat16)
    inputs |= {"x": inputs["x"] + 10, "gate": inputs["gate"].float()}
    _, found = gradients(lambda t: mix(t, spec, backend="cpu"), inputs)
    doubles = {name: t.double() for name, t in inputs.items()}
    _, exact = gradients(lambda t: mix(t, spec, backend="cpu").bfloat16(), doubles)
    assert found["gate"].dtype == torch.float32
    assert (found["gate"] - exact["gate"]).norm() <= 1e-4 * exact["gate"].norm()


def test_transforms() -> None:
    inputs = mixer_inputs(9, torch.bfloat16, 1, 2)
    xs = torch.randn(4, *inputs["x"].shape).bfloat16()

    def loss(x: Tensor) -> Tensor:
        return mix({**inputs, "x": x}, "exponential", backend="cpu").float().square().sum()

    each = torch.stack([torch.func.grad(loss)(x) for x in xs])
    assert torch.equal(torch.vmap(torch.func.grad(loss))(xs), each)
    leaf = xs[0].requires_grad_()
    [gradient] = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    [second] = torch.autograd.grad(gradient.sum(), leaf)
    assert gradient.dtype == second.dtype == torch.bfloat16
    assert torch.allclose(gradient.float(), each[0].float(), rtol=0.03, atol=0.03)
    assert second.isfinite().all()
    assert second.any()
