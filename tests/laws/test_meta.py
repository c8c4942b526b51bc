"""The meta device: shapes without numbers, to plan memory or to load weights into."""

import pytest
import torch

import resolvent as rv
from resolvent.rules import RULES

ONE_SOURCE = {"mamba1", "mamba2", "linear"}  # rules that need a first-order pattern


@pytest.mark.parametrize("rule", RULES)
def test_layers_on_the_meta_device(rule: str) -> None:
    with torch.device("meta"):
        layer = rv.Mixer(32, 2, "first-order" if rule in ONE_SOURCE else "exponential+cache", rule=rule)
        y = layer(torch.randn(2, 9, 32))
    y.sum().backward()
    assert (y.shape, y.device.type) == ((2, 9, 32), "meta")
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in layer.parameters() if p.requires_grad)


def test_models_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = rv.LanguageModel(rv.preset("tiny"))
        tokens = torch.zeros(1, 8, dtype=torch.long)
    assert model(tokens).shape == (1, 8, model.vocab_size)
    assert model.extend(tokens, model.make_cache(1, 16))[0].shape == (1, 8, model.vocab_size)
    with pytest.raises(ValueError, match="on the meta device has shapes and no weights"):
        model.generate([[1, 2]], 3)


def test_the_kernels_say_that_they_need_numbers() -> None:
    x = torch.randn(1, 1, 8, 16, device="meta")
    with pytest.raises(ValueError, match="backend 'cpu' needs tensors on a CPU, got meta"):
        rv.mix(x, "exponential", a=(x, x), b=(x, x), gate=0.5, backend="cpu")
    assert rv.mix(x, "exponential", a=(x, x), b=(x, x), gate=0.5).device.type == "meta"
