"""The model: counts by arithmetic, one decode verb, sampling, losses, profiles."""

import json

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.coefficients.gates import ScalarGate, TokenGate
from resolvent.model import PRESETS, LanguageModel, ModelConfig, preset
from resolvent.model.generate import Sampling, sample
from tests.mixers import PLAIN, RULES
from tests.operator_cases import DEEP, assert_close


def small(pattern: object = "exponential+cache", **changes: object) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(ModelConfig(vocab_size=50, layers=2, dim=32, heads=4, pattern=pattern, **changes)).double()


def some(b: int, n: int, vocabulary: int = 50) -> Tensor:
    return torch.randint(vocabulary, (b, n), generator=torch.Generator().manual_seed(b * 100 + n))


def by_arithmetic(config: ModelConfig) -> int:
    """Parameters of a model whose layers have the softmax rule."""
    d, inner = config.dim, config.inner_dim
    total = config.embedding_rows * d + 2 * d
    for layer in range(config.layers):
        p = rv.pattern(config.patterns_of(layer)[0])
        several = p.strides.last != 1
        sets = (
            2 + 2 * (p.direct == "all") + 2 * (p.recurrent and several)
        )  # values, output; queries and keys of A, of B
        total += sets * (d * d + d) + p.recurrent * (config.heads * d + 2 * config.heads)
        total += 4 * d + (d * inner + inner) + (inner * d + d)
    return total


def test_parameter_counts() -> None:
    """Every structure, and every preset."""
    of_structures = [preset("synthetic-4m", pattern=spec) for spec in rv.PAPER_STRUCTURES]
    for config in (*of_structures, *PRESETS.values()):
        assert LanguageModel.shape_only(config).parameter_count() == by_arithmetic(config), config


@pytest.mark.parametrize(("name", "shape", "millions", "overhead"), [
    ("gpt2-125m", (12, 768, 3072, 64, 50_257), 125, 14.3), ("gpt2-355m", (24, 1024, 4096, 64, 50_257), 355, 50.77),
    ("gpt2-775m", (36, 1280, 5120, 64, 50_257), 775, 118.98), ("synthetic-4m", (2, 256, 1024, 64, 8192), 4, 0.26),
])  # fmt: skip
def test_presets_are_the_papers_table(name: str, shape: tuple[int, ...], millions: float, overhead: float) -> None:
    """As large as their names; the dense recurrence costs a second set of queries and keys, and gates."""
    c, counts = PRESETS[name], {}
    assert (c.layers, c.dim, c.inner_dim, c.dim // c.heads, c.vocab_size) == shape
    for spec in ("attention", "dense"):
        counts[spec] = LanguageModel.shape_only(preset(name, pattern=spec)).parameter_count() / 1e6
    tolerance = 0.01 if name.startswith("gpt2") else 0.1
    assert counts["attention"] == pytest.approx(millions, rel=tolerance)
    assert counts["dense"] - counts["attention"] == pytest.approx(overhead, abs=0.06)


def test_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'layer'.*Did you mean 'layers'"):
        ModelConfig.from_dict({"layer": 3})
    with pytest.raises(ValueError, match="or 4, one for each; got 2"):
        ModelConfig(pattern=["attention", "dense"])
    with pytest.raises(rv.PatternError, match="unknown pattern"):
        ModelConfig(pattern="exponentail")
    with pytest.raises(ValueError, match=r"unknown preset 'gpt2-125'.*gpt2-125m"):
        preset("gpt2-125")
    config = ModelConfig(layers=2, pattern=["attention", ["dense", "dense", "local:8", "local:8"]])
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@torch.no_grad()
def test_start_is_as_documented() -> None:
    torch.manual_seed(0)
    model = LanguageModel(preset("tiny", dim=256, heads=8, layers=8, rule="softmax:gate=half"))
    std = 0.02 * 3**0.5
    assert model.embedding.weight.std() == pytest.approx(std, rel=0.02)  # by chance, of thousands of draws
    mixer = model.mixers[3]
    assert mixer.values.weight.std() == pytest.approx(std, rel=0.02)
    assert mixer.output.weight.std() == pytest.approx(std / 4, rel=0.02)
    assert not mixer.output.bias.any()
    gate = mixer.coefficients.gate(torch.zeros(1, 5, 256))
    torch.testing.assert_close(gate, torch.full((1, 8, 5), 0.5))
    mamba = TokenGate(256, 10_000)(torch.zeros(1, 1, 256))[0, :, 0]
    assert 0.19 < mamba.min() < 0.4
    assert 0.8 < mamba.mean() < 0.95
    scalar = ScalarGate(3, 0.3)(torch.zeros(2, 4, 8))
    torch.testing.assert_close(scalar, torch.full((2, 3, 4), 0.3))


@pytest.mark.parametrize("pattern", ["exponential+cache", "attention", ["quadratic", "first-order"]])
def test_extend_in_parts(pattern: object) -> None:
    model, tokens = small(pattern), some(2, 30)
    want = model(tokens)
    cache, parts = model.make_cache(2, 30), []
    size = cache.nbytes
    for part in tokens.split([11, 1, 1, 17], 1):
        logits, _ = model.extend(part, cache)
        parts.append(logits)
    assert_close(torch.cat(parts, 1), want, factor=DEEP)
    last, _ = model.extend(tokens, last_only=True)
    assert_close(last, want[:, -1:], factor=DEEP)
    assert cache.nbytes == size == 2 * 2 * model.profile(30).cache_bytes  # two sequences, in float64


def test_packed_and_padded() -> None:
    model, tokens = small(), some(1, 20)
    packed = model(tokens, cu_seqlens=[0, 8, 20])
    assert_close(packed[:, 8:], model(tokens[:, 8:]), factor=DEEP)
    padded = model(tokens, start=[8])
    assert_close(padded[:, 8:], model(tokens[:, 8:]), factor=DEEP)


def test_loss_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, targets = small(), some(2, 30), some(2, 30)
    targets[0, :7] = -100
    logits = model(tokens)
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    whole = model.loss(tokens, targets)
    monkeypatch.setattr("resolvent.model.language_model.MOST_LOGITS", 500)
    parts = model.loss(tokens, targets)
    assert_close(whole, want, factor=DEEP)
    assert_close(parts, want, factor=DEEP)
    first = torch.autograd.grad(want, list(model.parameters()))
    for mine, theirs in zip(torch.autograd.grad(parts, list(model.parameters())), first, strict=True):
        assert_close(mine, theirs, factor=DEEP)


def test_padded_vocabulary_is_never_seen() -> None:
    model = small(vocab_multiple=64)
    assert model.embedding.weight.shape[0] == 64
    assert model(some(1, 5)).shape[-1] == 50
    with pytest.raises(ValueError, match="expected tokens from 0 to 49"):
        model(torch.tensor([[50]]))


# Generation


def greedily(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    """The likeliest token again and again, by the full forward pass."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("pattern", ["exponential+cache", "attention", "quadratic"])
def test_greedy_is_the_full_forward(pattern: str) -> None:
    model, prompts = small(pattern), [[1, 2, 3, 4, 5], [7], [9, 8, 7]]
    found = model.generate(prompts, 12, temperature=0)
    assert found == [greedily(model, prompt, 12) for prompt in prompts]


def test_samples_depend_on_their_own_seed_alone() -> None:
    model, prompts = small(), [[1, 2, 3], [4], [5, 6]]
    together = model.generate(prompts, 10, seed=[11, 12, 13])
    alone = [model.generate([prompt], 10, seed=seed)[0] for prompt, seed in zip(prompts, (11, 12, 13), strict=True)]
    assert together == alone
    assert together != model.generate(prompts, 10, seed=[1, 2, 3])
    assert model.generate(prompts, 10, seed=11) == model.generate(prompts, 10, seed=[11, 12, 13])


def test_stop_tokens_end_a_sequence_and_no_other() -> None:
    model, prompts = small(), [[1, 2, 3], [4], [5, 6]]
    free = model.generate(prompts, 20, seed=3)
    stop = free[1][4]
    found = model.generate(prompts, 20, seed=3, stop=[stop])
    for mine, full in zip(found, free, strict=True):
        assert mine == (full[: full.index(stop)] if stop in full else full)
    steps = list(model.stream(prompts, 20, seed=3, stop=[stop]))
    assert [[step[b] for step in steps if step[b] is not None] for b in range(3)] == found


def test_sample() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(2000, -1)
    draws = [torch.Generator().manual_seed(b) for b in range(2000)]

    def counts(temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return torch.bincount(sample(logits, Sampling(temperature, top_k, top_p), draws), minlength=4) / 2000

    shares = logits[0].softmax(-1)  # 0.64, 0.24, 0.09, 0.03
    # The bound is one of chance: shares of so many draws, from a fixed seed.
    torch.testing.assert_close(counts(1.0, None, None), shares, rtol=0, atol=0.04)
    two = torch.cat([shares[:2] / shares[:2].sum(), torch.zeros(2)])
    torch.testing.assert_close(counts(1.0, 2, None), two, rtol=0, atol=0.04)
    assert (counts(1.0, None, 0.7) > 0).tolist() == [True, True, False, False]
    assert counts(1.0, None, 0.5).tolist() == [1, 0, 0, 0]
    assert counts(0, None, None).tolist() == [1, 0, 0, 0]
    torch.testing.assert_close(counts(2.0, None, None), (logits[0] / 2).softmax(-1), rtol=0, atol=0.04)


@pytest.mark.parametrize(("prompts", "options", "message"), [
    ([], {}, "at least one prompt"),
    ([[]], {}, "at least one token"),
    ([[50]], {}, "from 0 to 49"),
    ([1, 2], {}, "put it into a list"),
    ([[1]], {"temperature": -1.0}, "temperature ≥ 0"),
    ([[1]], {"top_k": 0}, "top_k ≥ 1"),
    ([[1]], {"top_p": 0.0}, "expected 0 < top_p ≤ 1"),
    ([[1]], {"seed": [1, 2]}, "one seed, or one for each of the 1 prompts, got 2"),
])  # fmt: skip
def test_generation_refuses(prompts: list[list[int]], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().generate(prompts, 3, **options)


# Profile


def test_profile_of_a_stack() -> None:
    n, model = 200, small(["exponential+cache", "attention"])
    found = model.profile(n)
    first, second = (rv.analyze(spec, n, heads=4, head_dim=8) for spec in ("exponential+cache", "attention"))
    assert found.cache_bytes == first.cost.cache_bytes + second.cost.cache_bytes
    assert found.cache_bytes == model.float().make_cache(1, n).nbytes
    assert found.max_hops == 1
    assert [layer.max_hops for layer in found.layers] == [first.max_hops, 1]
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2)
    mixing = first.cost.forward_madds_per_token + second.cost.forward_madds_per_token
    assert found.madds_per_token == matrices + 50 * 32 + mixing
    assert "cache" in str(found)


@pytest.mark.parametrize(("spec", "n", "hops", "reach"), [
    ("local:8", 15, 2, 14),
    ("local:8", 16, None, 14),
    (["local:8", "local:3"], 10, 2, 9),
    ("exponential+attention", 4, 2, 3),
    ("exponential+attention", 9, None, 8),
    ("offsets:2,4", 9, None, 8),
    (["offsets:2,4", "local:2"], 9, 3, 8),
])  # fmt: skip
def test_stacks_that_no_layer_connects_alone(spec: object, n: int, hops: int | None, reach: int) -> None:
    """By hand: 7 + 7 places for two windows of 8; 1, 2, 4, 8 and sums of two; even distances and one step more."""
    found = small(spec).profile(n)
    assert (found.max_hops, found.reach) == (hops, reach)


@pytest.mark.parametrize("rule", RULES)
def test_a_model_without_numbers_has_the_shapes(rule: str) -> None:
    """Of everything that is saved, whatever its initialization computes."""
    spec = next(spec for spec, fitting in PLAIN if fitting == rule)
    config = ModelConfig(vocab_size=50, layers=2, dim=24, heads=3, pattern=spec, rule=rule)
    shapes, real = LanguageModel.shape_only(config).state_dict(), LanguageModel.seeded(config, 0).state_dict()
    assert all(t.is_meta for t in shapes.values())
    assert {name: (t.shape, t.dtype) for name, t in shapes.items()} == {
        name: (t.shape, t.dtype) for name, t in real.items()
    }
