"""The paper's way computes the same, so that its time can be compared."""

import pytest
import torch

import resolvent as rv
from resolvent.model import LanguageModel, ModelConfig
from resolvent.studies.throughput import throughput
from tests.operator_cases import DEEP, assert_close


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_the_same_by_matrices(spec: str) -> None:
    config = ModelConfig(vocab_size=20, layers=2, dim=16, heads=2, pattern=spec)
    torch.manual_seed(0)
    tokens, targets = torch.randint(20, (2, 30)), torch.randint(20, (2, 30))
    losses, gradients = [], []
    for backend in ("auto", "paper"):
        model = LanguageModel.seeded(config, 0, backend=backend).double()
        losses.append(model.loss(tokens, targets))
        gradients.append(torch.autograd.grad(losses[-1], list(model.parameters())))
    assert_close(*losses, factor=DEEP)
    for mine, papers in zip(*gradients, strict=True):
        assert_close(mine, papers, factor=DEEP)


def test_timing() -> None:
    [result] = throughput(["first-order"], 1, 1, 1)
    assert result.n == 257
    assert min(result.ours, result.paper, result.free, result.task_share) > 0
