"""The paper's way computes the same, so that its time can be compared."""

import pytest
import torch

import resolvent as rv
from resolvent.model import LanguageModel, ModelConfig
from resolvent.studies.throughput import as_in_the_paper, throughput


@pytest.mark.parametrize("spec", rv.PAPER_STRUCTURES)
def test_the_same_by_matrices(spec: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(vocab_size=20, layers=2, dim=16, heads=2, pattern=spec)).double()
    tokens, targets = torch.randint(20, (2, 30)), torch.randint(20, (2, 30))
    found = model.loss(tokens, targets)
    with as_in_the_paper():
        wished = model.loss(tokens, targets)
    torch.testing.assert_close(found, wished, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(wished, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_timing() -> None:
    [found] = throughput(["first-order"], 1, 1, 1)
    assert found.n == 257
    assert min(found.ours, found.paper, found.free) > 0
    assert 0 < found.task_share < 1
