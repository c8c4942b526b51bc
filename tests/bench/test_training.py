"""Training steps of whole models: a step is a step of AdamW, and all cases take turns."""

import sys
from copy import deepcopy
from functools import partial

import pytest
import torch

import resolvent as rv
from resolvent.bench import bench_training, peers, training
from resolvent.errors import SettingError
from resolvent.model import LanguageModel, ModelConfig


def test_a_step_is_a_step_of_adamw() -> None:
    model = LanguageModel.seeded(ModelConfig(vocab_size=61, layers=1, dim=16, heads=2), 0)
    other, tokens = deepcopy(model), training.random_tokens(61, 2, 9)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-4)
    step = training.training(model, partial(training.loss_of, model))
    for _ in range(2):
        step(tokens)
        other.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one.grad is None


def test_record() -> None:
    pytest.importorskip("transformers")
    rounds = []
    record = bench_training(
        "tiny", [rv.pattern("order:2")], [16, 32], batch=2, rounds=2, after_each=lambda: rounds.append(1)
    )
    assert (record.kind, record.shape, record.missing) == ("training", "tiny", ())
    assert len(rounds) == 2 * 3
    for n in (16, 32):
        cases = record.at("batch 2", n)
        assert list(cases) == ["attention", "HF GPT-2", "order:2"]
        assert [m.peer for m in cases.values()] == [True, True, False]
        attention, theirs, sparse = cases.values()
        assert attention.tokens == 2 * n
        assert attention.parameters == theirs.parameters < sparse.parameters
        madds = LanguageModel.shape_only(rv.preset("tiny", pattern="attention")).profile(n).madds_per_token
        for peer in (attention, theirs):
            assert peer.share == pytest.approx(6 * madds * 2 * n / 100e9 / peer.seconds)
        if attention.peak_bytes is not None:
            assert attention.peak_bytes >= 4 * attention.parameters  # at least its gradients


def test_attention_is_there_once() -> None:
    record = bench_training("tiny", [rv.pattern("attention")], [8], rounds=1, against=False)
    assert [(m.case, m.peer) for m in record.measurements] == [("attention", True)]


def test_without_transformers_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    record = bench_training("tiny", [], [8], rounds=1)
    [missing] = record.missing
    assert missing.case == "HF GPT-2"
    assert "pip install 'transformers>=5.22,<6'" in missing.reason


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_LARGEST_BYTES", 1000)
    with pytest.raises(
        SettingError, match="expected a length whose training step fits into memory, got 8: on 8 tokens"
    ):
        bench_training("tiny", [], [8], rounds=1, against=False)
