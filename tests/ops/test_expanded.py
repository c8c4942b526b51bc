"""The recurrence with a matrix as state against a plain loop, and against the Mamba-2 of transformers."""

import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from resolvent.ops.scan import CHUNK, expanded_scan
from tests.operator_cases import Largest, assert_close


def loop(
    x: Tensor, write: Tensor, read: Tensor, log_decay: Tensor, state: Tensor | None = None, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    batch, heads, n, d = x.shape
    now = x.new_zeros(batch, heads, write.shape[-1], d) if state is None else state
    begins = torch.zeros(n, dtype=torch.bool) if begins is None else begins
    rows = []
    for t in range(n):
        cut = begins.expand(batch, n)[:, t, None, None, None]
        now = torch.where(cut, 0, log_decay[:, :, t, None, None].exp() * now)
        now = now + write[:, :, t, :, None] * x[:, :, t, None, :]
        rows.append((read[:, :, t, :, None] * now).sum(-2))
    return torch.stack(rows, dim=2), now


def inputs(n: int, k: int = 3, d: int = 5, groups: int = 2, heads: int = 2, batch: int = 2) -> list[Tensor]:
    """x, write, read, log_decay and a state."""
    torch.manual_seed(n + k + d)
    vectors = [torch.randn(batch, groups, n, k) for _ in range(2)]
    given = [torch.randn(batch, heads, n, d), *vectors, -torch.rand(batch, heads, n), torch.randn(batch, heads, k, d)]
    return [t.double().requires_grad_() for t in given]


def assert_same(mine: Any, exact: Any) -> None:
    """Tensors, or tuples of them."""
    for one, other in zip(tree_leaves(mine), tree_leaves(exact), strict=True):
        assert_close(one, other)


def gradients(run: Any, leaves: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    y, state = run(*leaves, **options)
    torch.manual_seed(1)
    return torch.autograd.grad(
        [y, state], leaves, [torch.randn_like(y), torch.randn_like(state)], materialize_grads=True
    )


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130])
def test_values_and_gradients(n: int) -> None:
    for k, d, groups in ((3, 5, 1), (4, 1, 2), (1, 7, 1)):
        for leaves in (inputs(n, k, d, groups), inputs(n, k, d, groups)[:4]):
            assert_same(expanded_scan(*leaves), loop(*leaves))
            assert_same(gradients(expanded_scan, leaves), gradients(loop, leaves))


@pytest.mark.parametrize("n", [1, 3, 5])
def test_first_and_second_derivatives(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Chunks of two, so that states are carried; a sequence begins in one of them."""
    monkeypatch.setattr(sys.modules["resolvent.ops.scan"], "CHUNK", 2)
    leaves = inputs(n, 2, 2, groups=1, batch=1)
    for begins in (None, torch.arange(n) == n // 2):

        def run(*t: Tensor, begins: Tensor | None = begins) -> tuple[Tensor, Tensor]:
            return expanded_scan(*t, begins=begins)

        assert torch.autograd.gradcheck(run, leaves)
        assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 150), (0, 63, 64, 129, 150)])
def test_continuing_is_the_whole(cuts: tuple[int, ...]) -> None:
    *given, state = inputs(150)
    begins = torch.rand(2, 150) < 0.05
    y, last = expanded_scan(*given, state, begins)
    parts = []
    for a, b in pairwise(cuts):
        part, state = expanded_scan(*(t[:, :, a:b] for t in given), state, begins[:, a:b])
        parts.append(part)
    assert_same((torch.cat(parts, dim=2), state), (y, last))


@pytest.mark.parametrize(("groups", "cuts"), [
    (1, (0, 1, 2, 66, 130, 131, 160)), (2, (5, 6, 64, 160)), (1, (64, 128, 160)), (2, (159, 160)),
])  # fmt: skip
def test_packed_sequences_do_not_see_each_other(groups: int, cuts: tuple[int, ...]) -> None:
    """Each is as if alone, in values and gradients, though what lies before is huge, with any decay where it begins."""
    *given, state = inputs(160, groups=groups)
    begins = torch.zeros(160, dtype=torch.bool)
    begins[list(cuts[:-1])] = True
    given[3] = given[3].detach().masked_fill(begins, -torch.inf).requires_grad_()
    y, last = expanded_scan(*given, state, begins)
    for a, b in pairwise(cuts):
        alone = [t[:, :, a:b].detach().requires_grad_() for t in given]
        exact, state_alone = expanded_scan(alone[0], *alone[1:3], alone[3].clamp(min=-1))
        assert_same(y[:, :, a:b], exact)
        if b == 160:
            assert_same(last, state_alone)
        found = torch.autograd.grad(y[:, :, a:b].sin().sum(), [*given, state], retain_graph=True)
        expected = torch.autograd.grad(exact.sin().sum(), alone, materialize_grads=True)
        for mine, theirs in zip(found[:3], expected[:3], strict=True):
            assert_same(mine[:, :, a:b], theirs)
        assert_same(found[3][:, :, a + 1 : b], expected[3][:, :, 1:])
        for g, least in zip(found[:4], (0, 0, 0, 1e-13), strict=True):  # differences of sums leave a rounding error
            assert (torch.cat([g[:, :, :a], g[:, :, b:]], dim=2).abs() <= least).all()
        assert not found[4].any()


def test_begins_of_each_sequence_of_a_batch() -> None:
    leaves = inputs(100)
    begins = torch.rand(2, 100) < 0.1
    begins[0, 0] = True
    assert_same(expanded_scan(*leaves, begins=begins), loop(*leaves, begins=begins))
    assert_same(gradients(expanded_scan, leaves, begins=begins), gradients(loop, leaves, begins=begins))
    one = [t[:, :, :1].detach() for t in leaves[:4]]
    for first in (torch.tensor([True]), torch.tensor([[True], [False]])):
        assert_same(expanded_scan(*one, leaves[4], first), loop(*one, leaves[4], first))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types_and_autocast(dtype: torch.dtype) -> None:
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs(150)]
    y, state = expanded_scan(*leaves)
    exact, exact_state = expanded_scan(*(t.double() for t in leaves))
    assert y.dtype == dtype
    assert state.dtype == torch.float32
    assert (y.double() - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()
    assert_close(state, exact_state)
    assert all(g.isfinite().all() for g in gradients(expanded_scan, leaves))
    with torch.autocast("cpu"):
        assert torch.equal(expanded_scan(*leaves)[0], y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strong_decays(dtype: torch.dtype) -> None:
    """All strong, and a few among weak ones, which must not spoil the differences behind them."""
    leaves = inputs(200)
    for strong in (torch.ones(200, dtype=torch.bool), torch.rand(200) < 0.1):
        leaves[3] = (torch.where(strong, -50, -0.01) * torch.ones(2, 2, 1)).double().requires_grad_()
        narrow = [t.detach().to(dtype).requires_grad_() for t in leaves]
        wide = [t.detach().double().requires_grad_() for t in narrow]
        assert_close(expanded_scan(*narrow)[0], loop(*wide)[0])
        for mine, theirs in zip(gradients(expanded_scan, narrow), gradients(loop, wide), strict=True):
            assert mine.isfinite().all()
            if dtype == torch.float64:
                assert_same(mine, theirs)


def test_one_strong_decay_spoils_no_difference_behind_it() -> None:
    """Sums of logarithms in float32 would be as coarse as the weak decays themselves from there on."""
    leaves = [t.detach().float() for t in inputs(60)]
    leaves[3] = torch.full((2, 2, 60), -0.01)
    leaves[3][..., 5] = -1e5
    assert_close(expanded_scan(*leaves)[0], loop(*(t.double() for t in leaves))[0])


def test_nothing_as_large_as_n_squared_or_n_states() -> None:
    leaves = inputs(2048, 32, 32, heads=1, groups=1, batch=1)
    with Largest() as largest:
        gradients(expanded_scan, leaves)
    assert largest.elements == 2048 * CHUNK


def test_wrong_shapes() -> None:
    x, write, read, decays, state = (t.detach() for t in inputs(4))
    for wrong in [
        (x[0], write, read, decays),
        (x[:, :, :0], write[:, :, :0], read[:, :, :0], decays[:, :, :0]),
        (x, write[:, :, :2], read, decays),
        (x, write, read[..., :1], decays),
        (x, write, read, decays[:, :1]),
        (x, write, read, decays, state.mT),
        (x, write, read, decays, None, torch.ones(3, dtype=torch.bool)),
        (x, write, read, decays, None, torch.ones(4)),
    ]:
        with pytest.raises(ValueError, match=r"expected .*\(.*N.*\)|\(B, H, K, D\)"):
            expanded_scan(*wrong)
