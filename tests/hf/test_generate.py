"""`generate` of transformers: a cache never changes a token, and is as large as the pattern says."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from resolvent.hf import ResolventForCausalLM
from tests.hf.models import VOCABULARY, prompts, tiny

KINDS = ("exponential+cache", "quadratic", "attention")  # slots given to newer tokens, and kept; A alone
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 4},
}


def generated(model: ResolventForCausalLM, *, padded: bool = False, tokens: int = 16, **options: object) -> Tensor:
    torch.manual_seed(2)
    return model.generate(**prompts(padded), max_new_tokens=tokens, **options)


@pytest.mark.parametrize("pattern", KINDS)
def test_a_cache_changes_no_token(pattern: str) -> None:
    model = tiny(pattern)
    for mode in MODES.values():
        for padded in (False, True):
            without = generated(model, padded=padded, use_cache=False, **mode)
            assert torch.equal(without, generated(model, padded=padded, **mode))
            assert len(without[:, 9:].unique()) > 4  # texts that could differ


@pytest.mark.parametrize("settings", [
    {"pattern": "local:4/first-order"}, {"pattern": ["dense", "order:3"], "rule": ["joint", "tied"]},
    {"pattern": "first-order", "rule": "mamba2:conv=4"}, {"pattern": "exponential", "kv_heads": 1},
], ids=lambda settings: str(settings["pattern"]))  # fmt: skip
def test_every_way_to_fill_a_cache_gives_the_same_tokens(settings: dict[str, object]) -> None:
    """All of a size that is final, in chunks of a prompt, and both."""
    model = tiny(**settings)
    without = [generated(model, padded=padded, use_cache=False) for padded in (False, True)]
    for ways in ({"static"}, {"chunks"}, {"static", "chunks"}):
        options = {"cache_implementation": "static"} if "static" in ways else {}
        options |= {"prefill_chunk_size": 4} if "chunks" in ways else {}
        for padded in (False, True):
            assert torch.equal(without[padded], generated(model, padded=padded, **options)), ways


def test_a_held_cache_goes_on_and_branches() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    expected = generated(model, use_cache=False, tokens=20)
    cache = DynamicCache(config=model.config)
    first = model.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    branch = copy.deepcopy(cache)
    for held in (cache, branch):
        assert held.get_seq_length() == 13  # the last token was not read yet
        assert torch.equal(model.generate(first, past_key_values=held, max_new_tokens=15, do_sample=False), expected)


def test_a_batch_is_repeated_and_selected() -> None:
    model, ids = tiny("quadratic+cache"), prompts()["input_ids"]
    with torch.no_grad():
        cache = model(ids).past_key_values
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        logits = model(torch.tensor([[5], [6]]), past_key_values=cache).logits
        alone = model(torch.cat([ids[[1, 0]], torch.tensor([[5], [6]])], 1)).logits[:, -1:]
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)
    cache.batch_select_indices(torch.tensor([False, True]))
    assert cache.layers[0].cache.batch == 1
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.layers[0].nbytes == 0


def test_a_cache_is_cut_where_the_pattern_keeps_all() -> None:
    ids = prompts()["input_ids"]
    with torch.no_grad():
        cache = tiny("attention")(ids).past_key_values
        cache.crop(-2)
        assert cache.get_seq_length() == 7
        dropped = tiny("local:4")(ids).past_key_values
        with pytest.raises(ValueError, match="cannot go from position 9 back to 7"):
            dropped.crop(-2)


def test_a_cache_of_the_pattern_stays_small() -> None:
    """20,000 tokens: what a pattern keeps grows with its logarithm, and the bytes are the promised ones."""
    model = tiny("exponential+cache", layers=1)
    cache, tokens = StaticCache(config=model.config, max_cache_len=20_000), torch.zeros(1, 4000, dtype=torch.long)
    sizes = []
    with torch.no_grad():
        for _ in range(5):
            model(tokens, past_key_values=cache, logits_to_keep=1)
            sizes.append(cache.layers[0].nbytes)
    assert cache.get_seq_length() == 20_000
    assert set(sizes) == {model.model.stack.profile(20_000).cache_bytes}
    assert sizes[0] < 20_000  # attention would keep 20,000 × 2 × 32 × 4 bytes


def test_what_cannot_work_says_what_to_do() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    with pytest.raises(ValueError, match=r"expected a cache that was made for this model.*DynamicCache\(config="):
        model.generate(ids, past_key_values=DynamicCache(), max_new_tokens=2)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids[:1], assistant_model=tiny(), max_new_tokens=2)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids[:1], prompt_lookup_num_tokens=2, max_new_tokens=2)
    with pytest.raises(NotImplementedError, match=r"continuous batching keeps pages .* expected generate\(\)"):
        model.generate_batch(ids.tolist(), max_new_tokens=2)
    full = StaticCache(config=model.config, max_cache_len=8)
    with pytest.raises(ValueError, match="made for max_cache_len=8 tokens, got 9: make it with a larger"):
        model(ids, past_key_values=full, use_cache=True)
    empty = prompts(padded=True)
    empty["attention_mask"][0] = 0
    with pytest.raises(ValueError, match="A prompt without any token, which is all padding, cannot be continued"):
        model.generate(**empty, max_new_tokens=2)
    with torch.no_grad():
        held = model(ids).past_key_values
        with pytest.raises(ValueError, match="expected a cache of 1 sequences, got one of 2"):
            model(ids[:1], past_key_values=held)
        with pytest.raises(ValueError, match=r"expected an attention_mask of the 9 tokens .* in row 0, got one of 6"):
            model(ids[:, :1], attention_mask=torch.arange(10).expand(2, -1) > 2, past_key_values=held)


@pytest.mark.parametrize("settings", [
    {"pattern": "quadratic+cache"}, {"heads": 4}, {"dim": 64}, {"kv_heads": 1}, {"layers": 1}, {"layers": 3},
    {"pattern": "first-order", "rule": "mamba2"},
], ids=str)  # fmt: skip
def test_a_cache_of_another_model_raises_an_error(settings: dict[str, object]) -> None:
    """One token, too: the compiled function would write beyond the memory of smaller caches."""
    model, ids = tiny(), prompts()["input_ids"]
    with torch.no_grad():
        other = tiny(**settings)(ids).past_key_values
        for tokens in (1, 9):
            with pytest.raises(ValueError, match=r"made (of|for this model)"):
                model(ids[:, :tokens], past_key_values=other)


def test_generating_while_gradients_are_checkpointed() -> None:
    model = tiny().train()
    model.gradient_checkpointing_enable()
    assert torch.equal(generated(model), generated(model, use_cache=False))


def test_logits_are_of_the_vocabulary_alone() -> None:
    model = tiny(vocab_multiple=64)
    assert model.lm_head.out_features == 128
    assert model(prompts()["input_ids"]).logits.shape == (2, 9, VOCABULARY)
    assert generated(model, do_sample=True, temperature=100.0).max() < VOCABULARY
