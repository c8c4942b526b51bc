"""Decoding by one compiled function gives what the modules give, wherever it takes their place, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from resolvent.model import LanguageModel, ModelConfig, fused, language_model
from resolvent.model.language_model import Block
from resolvent.ops import Cache
from tests.operator_cases import TABLE, Spec

# What the compiled function tells apart: rows that are alive, strides, windows, one source, A alone, rows listed.
KINDS: list[Spec] = ["quadratic+cache", "exponential", "local:5", "order:1", "attention", "dense", TABLE, "fenwick"]
KINDS += ["offsets:3+diagonal"]
SHAPES: dict[str, dict[str, object]] = {
    "usual": {},
    "shared keys": {"kv_heads": 2},
    "one key for all": {"kv_heads": 1},
    "no biases": {"bias": False},
    "no positions": {"rope": None},
    "one gate per head": {"rule": "softmax:gate=scalar@0.3"},
    "constant gate": {"rule": "softmax:gate=0.4"},
    "gates close to 1": {"rule": "softmax:gate=mamba"},
    "wide heads": {"heads": 1},
    "odd vocabulary": {"vocab_size": 37},
}


def _model(**options: object) -> LanguageModel:
    """Small, with weights large enough for every part to matter."""
    options = {"vocab_size": 64, "layers": 2, "dim": 64, "heads": 4, "pattern": "exponential+cache", **options}
    model = LanguageModel.seeded(ModelConfig(**options), 0)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def _prefilled(model: LanguageModel, lengths: list[int], most: int | None = None) -> Cache:
    longest = max(lengths)
    tokens = torch.randint(model.vocab_size, (len(lengths), longest), generator=torch.Generator().manual_seed(2))
    cache = model.make_cache(len(lengths), most)
    model.extend(tokens, cache, start=[longest - length for length in lengths])
    return cache


def _compare(model: LanguageModel, lengths: list[int], monkeypatch: pytest.MonkeyPatch, steps: int = 12) -> None:
    cache = _prefilled(model, lengths)
    other = cache.clone()
    for t in range(steps):
        tokens = torch.full((len(lengths), 1), t)
        logits, _ = model.extend(tokens, cache)
        with monkeypatch.context() as patched:
            patched.setattr(language_model, "next_logits", lambda *_: None)
            expected, _ = model.extend(tokens, other)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    with monkeypatch.context() as patched:  # modules go on from what it left, with any sequence alone
        patched.setattr(language_model, "next_logits", lambda *_: None)
        alone = [own.select([len(lengths) - 1]) for own in (cache, other)]
        (logits, _), (expected, _) = (model.extend(torch.tensor([[steps]]), own) for own in alone)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    for name, tensor in cache.tensors.items():
        torch.testing.assert_close(tensor, other.tensors[name], rtol=1e-4, atol=1e-4)
    assert cache.positions.tolist() == [length + steps for length in lengths]


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the compiled function took the place of the modules, call by call."""
    calls: list[bool] = []

    def watched(*arguments: object) -> torch.Tensor | None:
        logits = fused.next_logits(*arguments)  # type: ignore[arg-type]
        calls.append(logits is not None)
        return logits

    monkeypatch.setattr(language_model, "next_logits", watched)
    return calls


@pytest.mark.parametrize("pattern", KINDS, ids=str)
def test_equals_modules(pattern: Spec, taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence, several at one position, and at different ones."""
    model = _model(pattern=pattern)
    model.extend(torch.zeros(1, 1, dtype=torch.long))
    assert taken == [True]
    for lengths in ([9], [5, 5, 5], [1, 30, 7]):
        _compare(model, lengths, monkeypatch)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_modules_in_every_shape(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in ("exponential+cache", "first-order"):
        _compare(_model(**{"pattern": pattern, **SHAPES[shape]}), [3, 20], monkeypatch)


def test_patterns_by_head_and_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = ("local:4", "local:4", "exponential", "quadratic+cache")
    _compare(_model(pattern=(heads, "dense")), [3, 20], monkeypatch)
    _compare(_model(pattern=("local:2", "order:3")), [3, 20], monkeypatch)


def test_same_bits_in_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.ops.cpu.stack._WORTH_THREADS", 0)
    model, before, results = _model(), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(model.extend(torch.tensor([[3], [4]]), _prefilled(model, [9, 5]))[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.ops.cpu.stack._WORTH_THREADS", 0)
    model = _model()
    expected, _ = model.extend(torch.tensor([[3]]), _prefilled(model, [9]))
    cache = _prefilled(model, [9])
    child = os.fork()
    if child == 0:  # its team of threads is gone
        logits, _ = model.extend(torch.tensor([[3]]), cache)
        os._exit(0 if torch.equal(logits, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_never_read_does_not_matter() -> None:
    model = _model()
    cache = _prefilled(model, [9, 4], most=40)
    expected, _ = model.extend(torch.tensor([[3], [4]]), cache.clone())
    for child in cache.values():  # type: ignore[attr-defined]
        dead = torch.from_numpy(child.expiry < child.positions[:, None])[:, None, :, None]
        child.tensors = {name: t.masked_fill(dead, torch.nan) for name, t in child.tensors.items()}
    assert torch.equal(model.extend(torch.tensor([[3], [4]]), cache)[0], expected)


def test_a_full_cache_refuses_before_anything_is_written() -> None:
    model = _model()
    cache = _prefilled(model, [9], most=10)
    model.extend(torch.tensor([[3]]), cache)
    before = cache.clone()
    with pytest.raises(ValueError, match="made for 10 tokens"):
        model.extend(torch.tensor([[3]]), cache)
    assert all(torch.equal(t, before.tensors[name]) for name, t in cache.tensors.items())
    assert cache.positions.tolist() == [10]


def test_modules_serve_where_somebody_looks(taken: list[bool]) -> None:
    model, token = _model(), torch.tensor([[3]])
    seen: list[object] = []
    handle = model.blocks[0].mlp_in.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr]
    model.extend(token)
    assert seen == [1]
    handle.remove()
    with torch.enable_grad():
        assert model.extend(token)[0].requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        model.extend(token)
    model.blocks[0].mlp_in = torch.nn.Sequential(model.blocks[0].mlp_in)  # type: ignore[union-attr]
    model.extend(token)
    assert taken == [False] * 4


class _Scaled(torch.nn.Embedding):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(tokens)


class _Doubled(Block):
    def forward(self, *arguments: Any) -> torch.Tensor:
        return 2 * super().forward(*arguments)


class _Clipped(LanguageModel):
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden).clamp(-0.1, 0.1)


def _derive(module: torch.nn.Module, kind: type) -> None:
    module.__class__ = kind


CHANGES: dict[str, Callable[[LanguageModel], object]] = {
    "a hook on the embedding": lambda m: m.embedding.register_forward_hook(lambda *given: 2 * given[-1]),
    "a hook before the embedding": lambda m: m.embedding.register_forward_pre_hook(lambda _, given: (given[0] + 1,)),
    "another embedding": lambda m: _derive(m.embedding, _Scaled),
    "an embedding with a limit": lambda m: setattr(m.embedding, "max_norm", 0.1),
    "a method of the embedding": lambda m: setattr(
        m.embedding, "forward", lambda tokens: m.embedding.weight[tokens] * 2
    ),
    "another block": lambda m: _derive(m.blocks[0], _Doubled),
    "another model": lambda m: _derive(m, _Clipped),
    "a method of the model": lambda m: setattr(m, "logits", lambda hidden: hidden[..., :3]),
    "a method of a mixer": lambda m: setattr(m.mixers[1], "at", lambda x, *_: x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_modules_serve_what_the_function_does_not_know(change: str, taken: list[bool]) -> None:
    """What is decoded after a change is what the changed modules compute, and it is another thing than before."""
    model, tokens = _model(), torch.tensor([[3, 5, 7, 1]])
    before = model.extend(tokens[:, 3:], model.extend(tokens[:, :3])[1])[0]
    CHANGES[change](model)
    cache = model.extend(tokens[:, :3])[1]
    decoded = model.extend(tokens[:, 3:], cache)[0]
    assert taken == [True, False]
    torch.testing.assert_close(decoded, model(tokens)[:, 3:], rtol=1e-4, atol=1e-4)
    assert decoded.shape != before.shape or (decoded - before).abs().max() > 0.01


def test_a_backend_that_was_asked_for_decodes(taken: list[bool]) -> None:
    for backend in ("cpu", "torch"):
        model = _model()
        for mixer in model.mixers:
            object.__setattr__(mixer.layer, "operator", backend)
            object.__setattr__(mixer.layer, "backend", backend)
        model.extend(torch.tensor([[3]]))
    assert taken == [True, False]


@pytest.mark.parametrize("options", [
    {"rule": "tied"}, {"rule": "joint"}, {"pattern": "local:4/exponential"}, {"rule": "softmax:conv=3"}, {"heads": 8},
])  # fmt: skip
def test_modules_serve_other_rules_and_shapes(options: dict[str, object], taken: list[bool]) -> None:
    model = _model(**options)
    cache = _prefilled(model, [9])
    model.extend(torch.tensor([[3]]), cache)
    assert taken[-1] is False


def test_whatever_torch_makes_by_default() -> None:
    model = _model(rule="softmax:gate=0.4")
    expected, _ = model.extend(torch.tensor([[3]]), _prefilled(model, [9]))
    cache = _prefilled(model, [9])
    torch.set_default_dtype(torch.float64)
    try:
        logits, _ = model.extend(torch.tensor([[3]]), cache)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(logits, expected)


def test_weights_are_looked_up_for_every_token() -> None:
    model, token = _model(), torch.tensor([[3]])
    before, _ = model.extend(token)
    model.norm.weight.data = 2 * model.norm.weight.data
    after, _ = model.extend(token)
    assert not torch.equal(before, after)
    doubled = _model().double()
    assert doubled.extend(token)[0].dtype == torch.float64
