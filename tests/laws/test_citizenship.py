"""A good citizen of torch: derivatives of all orders, transforms, compile, export, autocast."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

import resolvent as rv
from resolvent.ops import tracing
from resolvent.ops.registry import BACKENDS, registered_name
from tests.operator_cases import (
    JOINT,
    NAMES,
    SPARSE,
    TABLE,
    Inputs,
    Spec,
    assert_close,
    backends,
    mix,
    mix_changed,
    mixer_inputs,
    solve,
)

USED = {"local:8": ["x", "qa", "ka"], "attention": ["x", "qa", "ka"], "first-order": ["x", "gate"]}
SOME: list[Spec] = ["exponential", "quadratic+cache", "dense", "first-order", "attention"]
SOME += ["fenwick", TABLE, "local:8/exponential+cache"]
TABLES = [TABLE, TABLE.spelling]  # as a value, and as a graph holds it


@pytest.mark.parametrize("spec", SOME)
def test_first_and_second_derivatives(spec: Spec) -> None:
    """Second ones in a random direction, which sees a wrong entry as well."""
    for backend in backends(spec):
        check_derivatives(backend, spec)


def check_derivatives(backend: str, spec: Spec) -> None:
    inputs = mixer_inputs(5, torch.float64, 1, 1, 2, 3)
    names = USED.get(spec, list(inputs))

    def run(*tensors: Tensor) -> Tensor:
        return mix(inputs | dict(zip(names, tensors, strict=True)), spec, backend=backend)

    leaves = [inputs[name].requires_grad_() for name in names]
    inputs = {name: t.detach() for name, t in inputs.items()}
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("backend", SPARSE)
def test_second_derivatives_of_solve(backend: str) -> None:
    x, alpha, beta = (torch.randn(1, 1, 5, w).double().requires_grad_() for w in (2, 4, 3))

    def run(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        return solve(x, "exponential", alpha, beta, backend=backend)

    assert torch.autograd.gradgradcheck(run, [x, alpha, beta / 3])


@pytest.mark.parametrize(("spec", "options"), [
    ("exponential", {}), (TABLE, {}), ("attention/first-order", {}), ("local:3", {}), ("attention", {}),
    ("exponential", JOINT), ("dense", JOINT), ("attention/first-order", JOINT), ("local:8/exponential+cache", JOINT),
])  # fmt: skip
def test_transforms(spec: Spec, options: dict[str, object]) -> None:
    for backend in ("auto", *SPARSE):
        check_transforms(9, lambda t, b=backend: mix(t, spec, backend=b, **options))


def test_transforms_of_long_sequences() -> None:
    """Which run on matrix products."""
    check_transforms(800, lambda t: mix(t, "dense"))


def check_transforms(n: int, run: Callable[[Inputs], Tensor]) -> None:
    """Over all inputs, gradients, and gradients over one input."""
    inputs = mixer_inputs(n, torch.float64, 3, 2)
    stacked = {name: t[:, None] for name, t in inputs.items()}
    each = torch.stack([run({k: t[i] for k, t in stacked.items()}) for i in range(3)])
    assert_close(torch.vmap(run)(stacked), each)
    rest = {name: t[0] for name, t in stacked.items()}

    def loss(x: Tensor) -> Tensor:
        return run({**rest, "x": x}).square().sum()

    leaf = stacked["x"].clone().requires_grad_()
    expected = torch.stack([torch.autograd.grad(loss(x), x)[0] for x in leaf.unbind()])
    assert_close(torch.stack([torch.func.grad(loss)(x) for x in stacked["x"]]), expected)
    assert_close(torch.vmap(torch.func.grad(loss))(stacked["x"]), expected)


@pytest.mark.parametrize(("backend", "spec"), [*((b, "exponential") for b in SPARSE), ("dense", "dense")])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode_is_refused_not_wrong(backend: str, spec: str) -> None:
    inputs = mixer_inputs(9, torch.float64)
    x = inputs["x"]
    with pytest.raises((RuntimeError, NotImplementedError), match=r"jvp|forward mode|forward AD"):
        torch.func.jvp(lambda x: mix({**inputs, "x": x}, spec, backend=backend), (x,), (x,))


@pytest.mark.parametrize("backend", SPARSE)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_operator(backend: str, requires_grad: bool) -> None:
    """In float32, and in bfloat16 beside a gate that is finer."""
    for dtype in (torch.float32, torch.bfloat16):
        inputs = mixer_inputs(9, dtype, 1, 2, 16, 16)
        tensors = [*list(inputs.values())[:-1], inputs["gate"].float()]
        tensors = [t.requires_grad_(requires_grad) for t in tensors]
        opcheck(tracing._mix, (tensors, "exponential+cache", [0, 4, 9], 0.25, backend))


def test_a_backend_that_is_not_registered_has_no_name_in_a_graph() -> None:
    class Own:
        NAME = "cpu"  # of another

    with pytest.raises(NotImplementedError, match="backend 'cpu' is not registered, and no graph can hold it"):
        registered_name(Own())
    assert [registered_name(backend) for backend in BACKENDS.values()] == list(BACKENDS)


@pytest.mark.parametrize(
    "spec", ["exponential", "quadratic+cache", "attention", "binomial:4", *TABLES, "attention/first-order"],
    ids=lambda spec: str(spec)[:24],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile(spec: Spec) -> None:
    """One graph for all lengths after the first, and the same gradients. (Traced by AOT; no C++ compiler is needed.)"""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda **t: mix(t, spec) + 1, fullgraph=True, backend=counter)
    for n in (33, 48, 64, 100, 77):
        inputs = {name: t.requires_grad_() for name, t in mixer_inputs(n, torch.float32).items()}
        y, expected = run(**inputs), mix(inputs, spec) + 1
        assert_close(y, expected)
        used = [inputs["x"], inputs["qa"]]
        for mine, theirs in zip(
            torch.autograd.grad(y.sum(), used), torch.autograd.grad(expected.sum(), used), strict=True
        ):
            assert_close(mine, theirs)
    assert counter.frame_count <= 2


def test_what_cannot_be_traced_says_so() -> None:
    inputs = mixer_inputs(9, torch.float32)
    for options, message in [
        (JOINT, "cannot be traced"),
        ({"pattern": rv.strided(lambda k: k + 1)}, "a spelling"),
    ]:
        run = torch.compile(lambda o=options, **t: mix_changed(t, "exponential", o), backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=message):
            run(**inputs)


class Layer(torch.nn.Module):
    def __init__(self, spec: Spec = "exponential+cache") -> None:
        super().__init__()
        self.spec = spec

    def forward(self, x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
        return mix(dict(zip(NAMES, (x, qa, ka, qb, kb, gate), strict=True)), self.spec)


@pytest.mark.parametrize("spec", ["exponential+cache", TABLE, "local:8/exponential+cache"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export(spec: Spec) -> None:
    length = torch.export.Dim("length", min=2, max=600)
    example = tuple(mixer_inputs(12, torch.float32).values())
    program = torch.export.export(Layer(spec), example, dynamic_shapes=tuple({2: length} for _ in example))
    other = tuple(mixer_inputs(20, torch.float32).values())
    assert torch.equal(program.module()(*other), Layer(spec)(*other))


@pytest.mark.parametrize("spec", ["exponential", "dense", TABLE, "attention/first-order"])
def test_autocast(spec: Spec) -> None:
    """Everything goes in as bfloat16 but the gate, is computed in float32, and comes out as bfloat16."""
    inputs = mixer_inputs(40, torch.float32)
    exact = mix(inputs, spec)
    halves = {name: t if name == "gate" else t.bfloat16() for name, t in inputs.items()}
    for backend in backends(spec):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = mix(inputs, spec, backend=backend)
        assert y.dtype == torch.bfloat16
        assert (y - exact).abs().max() < 0.1  # inputs were rounded, too, which the table knows nothing of
        assert torch.equal(mix(halves, spec, backend=backend), y)
