"""Generation by whole models: the peer decodes what it should, and caches stand where they are said to stand."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.bench import bench_generation, bench_training, generation, gpt2, peers
from resolvent.bench.decode import fill_randomly
from resolvent.bench.generation import Ours, Workload, workloads
from resolvent.bench.gpt2 import Gpt2
from resolvent.errors import SettingError
from resolvent.model import LanguageModel, ModelConfig
from tests.bench.samples import LIMITS
from tests.operator_cases import DEEP, assert_close

SHAPE = ModelConfig(vocab_size=61, layers=2, dim=16, heads=2, pattern="attention")


@pytest.fixture(scope="module")
def peer() -> Gpt2:
    pytest.importorskip("transformers")
    return Gpt2(SHAPE, 64)


@pytest.mark.parametrize("lengths", [[9], [9, 9, 9], [5, 9, 7]])
@torch.no_grad()
def test_both_caches_of_gpt2_give_the_same(peer: Gpt2, lengths: list[int]) -> None:
    decoders = []
    for static in (False, True):
        torch.manual_seed(0)
        decoders.append(peer.decoder(lengths, 12, static=static))
    for _ in range(3):
        tokens = [decoder.step().tolist() for decoder in decoders]
        assert tokens[0] == tokens[1]
        assert_close(decoders[0].logits, decoders[1].logits, factor=DEEP)


@torch.no_grad()
def test_gpt2_attends_to_no_padding(peer: Gpt2) -> None:
    """A sequence in a ragged batch is decoded as it is alone."""
    together = peer.decoder([5, 9], 12, static=False)
    alone = []
    for row, length in ((0, 5), (1, 9)):
        decoder = peer.decoder([length], 12, static=False)
        for own, shared in zip(decoder.cache.layers, together.cache.layers, strict=True):
            own.keys, own.values = (t[row : row + 1, :, 9 - length :] for t in (shared.keys, shared.values))
        alone.append(decoder)
    for _ in range(2):
        together.step()
        for row, decoder in enumerate(alone):
            decoder.step()
            assert_close(together.logits[row], decoder.logits[0], factor=DEEP)


@pytest.mark.parametrize("static", [False, True])
@torch.no_grad()
def test_gpt2_generates_as_it_decodes(peer: Gpt2, static: bool) -> None:
    """`generate` gives the tokens that full forward passes give, and caches are as large as is said."""
    text = torch.arange(7)[None]
    for token in peer.generate(text, 4, static=static)[0]:
        assert peer.model(text).logits[0, -1].argmax() == token
        text = torch.cat([text, torch.tensor([[token]])], 1)
    decoder = peer.decoder([9, 9], 12, static=static)
    for _ in range(3):
        decoder.step()
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in decoder.cache.layers)
    assert held == peer.cache_bytes(2, 12)


def test_gpt2_has_our_shape(peer: Gpt2) -> None:
    """The same parameters as our model with attention, whose positions are rotary, and its loss is its own."""
    assert peer.parameters == LanguageModel.shape_only(SHAPE).parameter_count()
    tokens = torch.randint(61, (2, 9))
    logits = peer.model(tokens[:, :-1]).logits[:, :-1]
    assert_close(peer.loss(tokens), torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:-1].flatten()))
    with pytest.raises(SettingError, match="GPT-2 shares no keys between heads: expected no kv_heads, got 1"):
        Gpt2(ModelConfig(heads=2, dim=16, kv_heads=1), 8)


@pytest.mark.parametrize("rule", ["softmax", "joint", "mamba1", "softmax:conv=4"])
@pytest.mark.parametrize("lengths", [[20, 20], [11, 20]])
@torch.no_grad()
def test_our_caches_stand_where_they_should(rule: str, lengths: list[int]) -> None:
    """Every slot that a token reads is filled, and decoding goes on from there."""
    spec = "first-order" if rule == "mamba1" else "exponential+cache"
    model = LanguageModel.seeded(ModelConfig(vocab_size=61, layers=2, dim=16, heads=2, pattern=spec, rule=rule), 0)
    cache = model.make_cache(2, 24)
    before = cache.nbytes
    fill_randomly(cache, lengths)
    assert cache.positions.tolist() == lengths
    logits, _ = model.extend(torch.zeros(2, 1, dtype=torch.long), cache)
    assert torch.isfinite(logits).all()
    assert cache.positions.tolist() == [length + 1 for length in lengths]
    assert cache.nbytes == before
    assert all((tensor != 0).any() for tensor in cache.tensors.values())


@torch.no_grad()
def test_ours_generates_and_decodes() -> None:
    ours = Ours("tiny", rv.pattern("local:3/exponential+cache"))
    step = ours.decoder([5, 9], 12)
    assert step().shape == (2, 1)
    assert len(ours.call(torch.arange(6)[None], 3)[0]) == 3
    assert ours.cache_bytes(2, 12) == ours.model.make_cache(2, 12).nbytes
    attention = Ours("tiny", rv.pattern("attention"))
    more = attention.loaded_bytes(2, 1000) - attention.loaded_bytes(2, 500)
    assert more == 500 * 2 * 2 * 4 * 128 * 4  # keys and values, sequences, layers, channels, bytes


def test_workloads() -> None:
    """`generate()` for short prompts alone; ragged batches from half of the length to all of it."""
    named = [(kind.name, n) for kind, n in workloads([1, 4], [1000, 16])]
    assert named == [("generate()", 16), ("batch 1", 16), ("batch 1", 1000), ("batch 4", 16), ("batch 4", 1000),
                     ("batch 4, ragged", 16), ("batch 4, ragged", 1000)]  # fmt: skip
    lengths = Workload("", 4, ragged=True).lengths(16)
    assert lengths == [8, 10, 13, 16]
    assert Workload("", 2).lengths(16) == [16, 16]
    assert np.all(np.array(Workload("", 8, ragged=True).lengths(1)) == 1)


def test_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes turns: ours and the peer's two caches, by workload and length."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(generation, "_OUT_OF_CACHE", 0)
    rounds = []
    patterns = [rv.pattern("order:2"), rv.pattern("attention")]
    record = bench_generation(
        "tiny", patterns, [5, 300], batches=(2,), tokens=1, rounds=2, after_each=lambda: rounds.append(1)
    )
    assert (record.kind, record.shape, record.rounds, record.limits) == ("generate", "tiny", 2, LIMITS)
    assert len(rounds) == 3 * 5
    assert record.workloads == ["generate()", "batch 2", "batch 2, ragged"]
    assert record.lengths("generate()") == [5]
    for workload in record.workloads[1:]:
        assert record.lengths(workload) == [5, 300]
        cases = record.at(workload, 300)
        assert list(cases) == ["HF GPT-2, dynamic", "HF GPT-2, static", "order:2", "attention"]
        assert [m.peer for m in cases.values()] == [True, True, False, False]
        dynamic, static, sparse, attention = cases.values()
        assert dynamic.cache_bytes == static.cache_bytes == 2 * 2 * 4 * 128 * 303 * 4  # k and v, rows, layers, …
        assert sparse.cache_bytes < attention.cache_bytes <= static.cache_bytes
        assert sparse.parameters > attention.parameters == static.parameters
        assert attention.share == pytest.approx(
            4 * (attention.parameters + 2 * 4 * 2 * 300 * 128) / 20e9 / attention.seconds, rel=0.01
        )
        assert dynamic.tokens == 2


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [rv.pattern("first-order"), rv.pattern("attention")]
    monkeypatch.setattr(peers, "_LARGEST_BYTES", 100_000)
    record = bench_generation("tiny", both, [200], batches=(1,), tokens=1, rounds=1, against=False)
    assert list(record.at("batch 1", 200)) == ["first-order"]
    [missing] = [each for each in record.missing if each.reason.startswith("batch 1")]
    assert missing.case == "attention"
    assert "caches would take more than 0.0 GiB together" in missing.reason
    monkeypatch.setattr(peers, "_LARGEST_BYTES", 100)
    with pytest.raises(SettingError, match=r"no cache for generate\(\) after 200 tokens fits into memory"):
        bench_generation("tiny", both, [200], batches=(1,), tokens=1, rounds=1, against=False)


@pytest.mark.parametrize(("bench", "wrong", "message"), [
    (bench_generation, {"batches": (1, -2)}, "expected batches to be integers ≥ 1, got -2"),
    (bench_generation, {"lengths": []}, "expected at least one pattern, one length and one batch size"),
    (bench_generation, {"lengths": [0]}, "expected an integer ≥ 1"),
    (bench_generation, {"name": "tini"}, "unknown preset 'tini': .* Did you mean 'tiny'"),
    (bench_training, {"batch": 0}, "expected batch to be an integer ≥ 1, got 0"),
    (bench_training, {"lengths": []}, "expected at least one length n, got none"),
])  # fmt: skip
def test_bad_input(bench: Callable[..., object], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench(**{"name": "tiny", "patterns": [rv.pattern("dense")], "lengths": [8], "against": False, **wrong})


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        with pytest.raises(
            ImportError, match=r"GPT-2 of transformers, which is missing: pip install 'transformers>=5.22,<6'"
        ):
            bench_generation("tiny", [rv.pattern("dense")], [8])
    pytest.importorskip("transformers")
    monkeypatch.setattr(gpt2.metadata, "version", lambda _: "4.57.1")
    with pytest.raises(ImportError, match=r"expected transformers ≥ 5 to compare with, got 4.57.1"):
        gpt2.require_transformers()
