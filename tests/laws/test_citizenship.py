"""A good citizen of torch: derivatives of all orders, transforms, compile, export, autocast."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

import resolvent as rv
from resolvent.ops import compiled
from tests.laws.test_backends import PAIRS, SPARSE, Inputs, mixer_inputs

USED = {"local:8": ["x", "qa", "ka"], "attention": ["x", "qa", "ka"], "first-order": ["x", "gate"]}
SOME = ["exponential", "quadratic+cache", "dense", "first-order", "attention"]


def rest_of(inputs: Inputs) -> Inputs:
    return {name: t for name, t in inputs.items() if name != "x"}


@pytest.mark.parametrize(("backend", "spec"), [(backend, spec) for backend, spec in PAIRS if spec in SOME])
def test_first_and_second_derivatives(backend: str, spec: str) -> None:
    inputs = mixer_inputs(5, torch.float64, 1, 1, 2, 3)
    names = USED.get(spec, list(inputs))

    def run(*tensors: Tensor) -> Tensor:
        return rv.mix(**(inputs | dict(zip(names, tensors, strict=True))), p=spec, backend=backend)

    leaves = [inputs[name].requires_grad_() for name in names]
    inputs = {name: t.detach() for name, t in inputs.items()}
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=spec == "dense")  # in full it takes half a minute


@pytest.mark.parametrize("backend", SPARSE)
def test_second_derivatives_of_solve(backend: str) -> None:
    x, alpha, beta = (torch.randn(1, 1, 5, w).double().requires_grad_() for w in (2, 4, 3))
    assert torch.autograd.gradgradcheck(lambda *t: rv.solve(*t, "exponential", backend=backend), [x, alpha, beta / 3])


@pytest.mark.parametrize("backend", SPARSE)
def test_transforms(backend: str) -> None:
    inputs = mixer_inputs(9, torch.float64, 1, 2)
    xs = torch.randn(4, *inputs["x"].shape).double()

    def loss(x: Tensor) -> Tensor:
        return rv.mix(x, **rest_of(inputs), p="exponential", backend=backend).square().sum()

    def run(x: Tensor) -> Tensor:
        return rv.mix(x, **rest_of(inputs), p="exponential", backend=backend)

    torch.testing.assert_close(torch.vmap(run)(xs), torch.stack([run(x) for x in xs]))
    leaf = xs[0].clone().requires_grad_()
    [expected] = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(xs[0]), expected)
    each = torch.stack([torch.func.grad(loss)(x) for x in xs])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(xs), each)


@pytest.mark.parametrize(("backend", "spec"), [*((b, "exponential") for b in SPARSE), ("dense", "dense")])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode_is_refused_not_wrong(backend: str, spec: str) -> None:
    inputs = mixer_inputs(9, torch.float64)
    x = inputs["x"]
    with pytest.raises((RuntimeError, NotImplementedError), match=r"jvp|forward mode|forward AD"):
        torch.func.jvp(lambda x: rv.mix(x, **rest_of(inputs), p=spec, backend=backend), (x,), (x,))


@pytest.mark.parametrize("backend", SPARSE)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_operator(backend: str, requires_grad: bool) -> None:
    tensors = [t.requires_grad_(requires_grad) for t in mixer_inputs(9, torch.float32, 1, 2, 16, 16).values()]
    opcheck(compiled._mix, (*tensors, "exponential+cache", [0, 4, 9], 0.25, backend))


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "attention"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile(spec: str) -> None:
    """One graph for all lengths after the first, and the same gradients. (Traced by AOT; no C++ compiler is needed.)"""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda **t: rv.mix(**t, p=spec) + 1, fullgraph=True, backend=counter)
    for n in (33, 48, 64, 100, 77):
        inputs = {name: t.requires_grad_() for name, t in mixer_inputs(n, torch.float32).items()}
        y, expected = run(**inputs), rv.mix(**inputs, p=spec) + 1
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        used = [inputs["x"], inputs["qa"]]
        for mine, theirs in zip(
            torch.autograd.grad(y.sum(), used), torch.autograd.grad(expected.sum(), used), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2


def test_what_cannot_be_traced_says_so() -> None:
    inputs = mixer_inputs(9, torch.float32)
    for options, message in [
        ({"normalise": "whole"}, "cannot be traced"),
        ({"p": rv.strided(lambda k: k + 1)}, "a spelling"),
    ]:
        run = torch.compile(
            lambda o=options, **t: rv.mix(**{"p": "exponential", **t, **o}), backend="eager", fullgraph=True
        )
        with pytest.raises(Exception, match=message):
            run(**inputs)


class Layer(torch.nn.Module):
    def forward(self, x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
        return rv.mix(x, qa, ka, qb, kb, gate, "exponential+cache")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export() -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    example = tuple(mixer_inputs(12, torch.float32).values())
    program = torch.export.export(Layer(), example, dynamic_shapes=tuple({2: length} for _ in example))
    other = tuple(mixer_inputs(20, torch.float32).values())
    assert torch.equal(program.module()(*other), Layer()(*other))


@pytest.mark.parametrize("spec", ["exponential", "dense"])
def test_autocast(spec: str) -> None:
    """Everything goes in as bfloat16 but the gate, is computed in float32, and comes out as bfloat16."""
    inputs = mixer_inputs(40, torch.float32)
    exact = rv.mix(**inputs, p=spec)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = rv.mix(**inputs, p=spec)
    assert y.dtype == torch.bfloat16
    assert (y - exact).abs().max() < 0.1
    halves = {name: t.bfloat16() for name, t in rest_of(inputs).items() if name != "gate"}
    mixed = rv.mix(inputs["x"].bfloat16(), **halves, gate=inputs["gate"], p=spec)
    assert torch.equal(mixed, y)
