"""Memory is reused only when nobody can see it any more."""

import gc
import os

import pytest
import torch

from resolvent.ops.cpu import memory
from tests.operator_cases import mix, mixer_inputs

LIKE = torch.empty(1 << 19)  # 2 MiB


def test_memory_comes_back_when_its_tensor_dies() -> None:
    memory.release()
    first = memory.empty_like(LIKE)
    address = first.data_ptr()
    del first
    gc.collect()
    again = memory.empty_like(LIKE)
    assert again.data_ptr() == address
    assert (again.shape, again.dtype, again.is_contiguous()) == (LIKE.shape, LIKE.dtype, True)


def test_any_view_keeps_it() -> None:
    memory.release()
    first = memory.empty_like(LIKE).fill_(1)
    part = first[5:9].view(2, 2)
    del first
    gc.collect()
    others = [memory.empty_like(LIKE).fill_(2) for _ in range(3)]
    assert (part == 1).all()
    assert len({t.data_ptr() for t in others}) == 3


def test_results_outlive_later_calls() -> None:
    """Outputs, gradients and what autograd saved stay as they were while other calls run."""
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(3000, torch.float32, 2, 3, 16, 16).items()}
    y = mix(inputs, "exponential")
    assert y.nbytes >= 1 << 20
    kept = y.detach().clone()
    grads = torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y), retain_graph=True)
    copies = [g.clone() for g in grads]
    for _ in range(3):
        other = mix({k: t.detach() * 2 for k, t in inputs.items()}, "exponential")
        del other
    assert torch.equal(y.detach(), kept)
    assert all(torch.equal(g, c) for g, c in zip(grads, copies, strict=True))
    again = torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y))
    assert all(torch.equal(g, c) for g, c in zip(again, copies, strict=True))


def test_no_more_is_kept_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.release()
    monkeypatch.setattr(memory, "kept_at_most", lambda: 20 << 20)
    for megabytes in (8, 4, 2, 8):
        tensors = [memory.empty_like(torch.empty(megabytes << 18)) for _ in range(2)]
        del tensors
        gc.collect()
    assert {size >> 20: len(blocks) for size, blocks in memory._free.items()} == {2: 2, 8: 2}  # the sizes used last
    memory.release()
    assert not memory._free


def test_an_eighth_of_the_memory_is_kept_at_most() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.kept_at_most() <= max(pages // 8, 384 << 20)


def test_zeros_are_zero_however_large() -> None:
    for size in (10, 1 << 21):
        assert not memory.zeros((size, 2), torch.float32, "cpu").any()
