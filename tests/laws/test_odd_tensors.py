"""Tensors that are legal and odd, and what is not a tensor at all."""

from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rv
from tests.operator_cases import TABLE, Spec, assert_close, backends, cut, extend, mix, mixer_inputs, solve

SPECS: list[Spec] = ["exponential", "quadratic+cache", "first-order", "dense", TABLE, "exponential/order:8"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("options", [{}, {"normalize": "joint"}])
def test_views_that_stand_for_their_negative(spec: Spec, options: dict[str, Any]) -> None:
    """As the imaginary part of a conjugate does; kernels see memory."""
    inputs = mixer_inputs(9, torch.float64, 1, 2, 16, 16)
    odd = {name: torch._neg_view(-t) for name, t in inputs.items()}
    assert odd["x"].is_neg()
    for backend in backends(spec):
        exact = mix(inputs, spec, backend=backend, **options)
        assert_close(mix(odd, spec, backend=backend, **options), exact, what=backend)
    cache = rv.decode_cache(spec, 1, 2, 16, 16, dtype=torch.float64, **options)
    y = [extend(cut(odd, t, t + 1), spec, cache, **options) for t in range(9)]
    assert_close(torch.cat(y, 2), mix(inputs, spec, **options))


def test_solve_of_views_that_stand_for_their_negative() -> None:
    x, half = torch.randn(1, 1, 9, 4), torch.full((1, 1, 9, 1), 0.5)
    exact = solve(x, "first-order", half, half)
    assert_close(solve(torch._neg_view(-x), "first-order", torch._neg_view(-half), torch._neg_view(-half)), exact)


@pytest.mark.parametrize(("change", "message"), [
    ({"scale": torch.ones((), requires_grad=True)}, "expected scale as a number, got Tensor: to learn one, multiply"),
    ({"scale": "1"}, "expected scale as a number, got str"),
    ({"x": np.zeros((1, 1, 9, 4))}, r"expected x as a tensor of shape \(B, H, N, D\), got ndarray"),
    ({"x": torch.zeros(1, 1, 9, 4).to_sparse()}, "expected dense tensors: x is torch.sparse_coo"),
])  # fmt: skip
def test_what_is_not_a_tensor_is_named(change: dict[str, Any], message: str) -> None:
    q = torch.zeros(1, 1, 9, 4)
    x, options = change.pop("x", q), {"a": (q, q), "b": (q, q), "gate": 0.5, **change}
    with pytest.raises(TypeError, match=message):
        rv.mix(x, "exponential", **options)


def test_tokens_of_few_bits_are_named() -> None:
    model = rv.LanguageModel(rv.preset("tiny"))
    with pytest.raises(ValueError, match="expected tokens as int64 or int32"):
        model(torch.zeros(1, 4, dtype=torch.uint8))
