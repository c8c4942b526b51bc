"""The first-order scan against a plain loop: values, derivatives, splits, cuts, types, and both ways to compute it."""

import math
import sys
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from resolvent.ops.scan import scan
from tests.operator_cases import assert_close

MODULE = sys.modules["resolvent.ops.scan"]
SHAPES = [(1, 1, 1), (2, 1, 5), (1, 2, 3), (3, 7, 1), (2, 33, 17), (1, 100, 40), (5, 129, 67)]


@pytest.fixture(params=["kernel", "doubling"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test for the compiled kernels, divided between threads, and for plain torch."""
    monkeypatch.setattr(MODULE, "_WORTH_THREADS", 100)
    if request.param == "doubling":
        monkeypatch.setattr(MODULE, "_compiles", lambda _: False)


def loop(decay: Tensor, x: Tensor, initial: Tensor | None = None) -> Tensor:
    y, rows = torch.zeros_like(x[:, 0]) if initial is None else initial, []
    for t in range(x.shape[1]):
        y = decay[:, t] * y + x[:, t]
        rows.append(y)
    return torch.stack(rows, dim=1)


def inputs(shape: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Decays of both signs, some of them zero, some larger than one."""
    torch.manual_seed(sum(shape))
    decay = 2.2 * torch.rand(shape) - 1.1
    decay[torch.rand(shape) < 0.1] = 0
    given = [decay, torch.randn(shape), torch.randn(shape[0], shape[2])]
    return [t.to(dtype).requires_grad_() for t in given]


def test_values_and_gradients() -> None:
    for shape, given in product(SHAPES, (2, 3)):  # without an initial state, and with one
        check(inputs(shape)[:given])


def check(leaves: list[Tensor]) -> None:
    y, exact = scan(*leaves), loop(*leaves)
    assert_close(y, exact)
    with torch.no_grad():
        assert torch.equal(scan(*leaves), y)
    g = torch.randn_like(y)
    expected = torch.autograd.grad(exact, leaves, g, materialize_grads=True)
    for mine, theirs in zip(torch.autograd.grad(y, leaves, g, materialize_grads=True), expected, strict=True):
        assert_close(mine, theirs)
    for leaf, theirs in zip(leaves, expected, strict=True):  # one alone, where the others need no gradient
        one = [t if t is leaf else t.detach() for t in leaves]
        y = scan(*one)
        if y.requires_grad:  # the first decay alone multiplies nothing
            assert_close(torch.autograd.grad(y, leaf, g)[0], theirs)


def test_first_and_second_derivatives() -> None:
    for shape, given in product([(1, 1, 2), (2, 2, 1), (1, 5, 3)], (2, 3)):
        leaves = inputs(shape)[:given]
        if shape[1] == 1 and given == 2:
            leaves[0] = leaves[0].detach()
        assert torch.autograd.gradcheck(scan, leaves)
        assert torch.autograd.gradgradcheck(scan, leaves)


def test_continuing_is_the_whole() -> None:
    for cuts in ((0, 1, 2, 50), (0, 13, 14, 33, 50), (0, 49, 50)):
        decay, x, last = inputs((2, 50, 5))
        whole, parts = scan(decay, x, last), []
        for a, b in pairwise(cuts):
            parts.append(scan(decay[:, a:b], x[:, a:b], last))
            last = parts[-1][:, -1]
        assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("broken", [1e300, math.inf, math.nan])
def test_a_zero_cuts_exactly(broken: float) -> None:
    """Neither what overflows before it nor a NaN comes through, forward or, behind it, backward."""
    decay, x, _ = (t.detach() for t in inputs((1, 40, 3)))
    alone = scan(decay[:, 20:].clone().index_fill_(1, torch.tensor(0), 0), x[:, 20:])
    decay[:, :20], decay[:, 20] = 1e10, 0
    x[:, :20] = broken
    leaf = x.requires_grad_()
    y = scan(decay, leaf)
    assert_close(y[:, 20:], alone)
    [gradient] = torch.autograd.grad(y[:, 20:].sum(), leaf)
    assert gradient.isfinite().all()
    assert not gradient[:, :20].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types(dtype: torch.dtype) -> None:
    leaves = inputs((2, 70, 9), dtype)
    y, exact = scan(*leaves), scan(*(t.double() for t in leaves))
    assert y.dtype == dtype
    assert (y.double() - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()
    gradients = torch.autograd.grad(y.sum(), leaves)
    assert all(g.dtype == dtype and g.isfinite().all() for g in gradients)
    mixed = scan(leaves[0].float(), leaves[1], leaves[2].float())  # decays and states are often kept wide
    assert torch.equal(mixed, y)


def test_memory_in_any_order() -> None:
    """Transposed, expanded and sliced inputs, and the same bits every time."""
    decay, x, initial = inputs((2, 33, 6))
    odd = [decay.mT.contiguous().mT, torch.stack([x, x])[1], initial[:, :1].expand(-1, 6)]
    assert_close(scan(*odd), loop(*odd))
    assert torch.equal(scan(decay, x, initial), scan(*(t.clone() for t in (decay, x, initial))))


def test_empty_and_wrong_shapes() -> None:
    for shape in ((0, 4, 3), (2, 4, 0)):
        assert scan(torch.ones(shape), torch.ones(shape)).shape == shape
    x = torch.ones(2, 4, 3)
    for decay, y, initial in ((x[:, :, :1], x, None), (x[:, :0], x[:, :0], None), (x, x, x[:1, 0]), (x[0], x[0], None)):
        with pytest.raises(ValueError, match=r"\(B, "):
            scan(decay, y, initial)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda *t: scan(*t) + 1, fullgraph=True, backend="aot_eager")
    leaves = inputs((2, 21, 5), torch.float32)
    y, expected = run(*leaves), scan(*leaves) + 1
    assert_close(y, expected)
    g = torch.randn_like(y)
    for mine, theirs in zip(torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, leaves, g), strict=True):
        assert_close(mine, theirs)
