"""The gradient of the gated softmax as docs/theory.md derives it, against autograd through the reference."""

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import reference
from tests.operator_cases import PATTERNS, as_tuple, assert_close, gradients, mixer_inputs

SCALE = 0.3


def by_formula(inputs: dict[str, Tensor], p: rv.Pattern, grad_y: Tensor) -> dict[str, Tensor]:
    """Every gradient, written with n × n matrices so that each line is one of the text."""
    x, qa, ka, qb, kb, gate = (inputs[name] for name in ("x", "qa", "ka", "qb", "kb", "gate"))
    n = x.shape[-2]
    mask_a, mask_b = (torch.from_numpy(p.mask(n, part)) for part in ("a", "b"))
    feeds = mask_b.any(-1)  # rows that read nothing count as g = 0
    g = (gate * feeds)[..., None]
    soft_a = (SCALE * qa @ ka.mT).masked_fill(~mask_a, -torch.inf).softmax(-1)
    soft_b = (SCALE * qb @ kb.mT).masked_fill(~mask_b, -torch.inf).softmax(-1).nan_to_num(0.0)
    a, b = (1 - g) * soft_a, g * soft_b
    y = torch.linalg.inv(torch.eye(n, dtype=x.dtype) - b) @ a @ x
    o, m = soft_a @ x, soft_b @ y

    grad_u = torch.linalg.inv(torch.eye(n, dtype=x.dtype) - b).mT @ grad_y
    grad_gate = (grad_u * (m - o)).sum(-1) * feeds
    grad_p = a * (grad_u @ x.mT - (grad_u * o).sum(-1, keepdim=True))
    grad_r = b * (grad_u @ y.mT - (grad_u * m).sum(-1, keepdim=True))
    for grad in (grad_p, grad_r):  # a softmax does not see a constant added to its scores
        assert_close(grad.sum(-1), torch.zeros_like(grad[..., 0]))
    return {
        "x": a.mT @ grad_u,
        "qa": SCALE * grad_p @ ka,
        "ka": SCALE * grad_p.mT @ qa,
        "qb": SCALE * grad_r @ kb,
        "kb": SCALE * grad_r.mT @ qb,
        "gate": grad_gate,
    }


@pytest.mark.parametrize("n", [1, 19])
@pytest.mark.parametrize("spec", PATTERNS)
def test_gated_softmax_gradient_is_autograd(spec: str, n: int) -> None:
    p, inputs = rv.pattern(spec), mixer_inputs(n, torch.float64)
    y, expected = gradients(lambda leaves: reference.mix(as_tuple(leaves), p, SCALE), inputs)
    grad_y = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # as `gradients`
    for name, grad in by_formula(inputs, p, grad_y).items():
        assert_close(grad, expected[name], what=f"d{name}")
