"""Models that exist, with mixers in place of attention: equal at first, trained on, generating with their caches."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from resolvent.hf import replace_attention
from tests.hf.models import VOCABULARY, prompts

TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3}  # fmt: skip


def gpt2(**settings: object) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(**TOKENS | shape | settings)).eval()


def llama(**settings: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TOKENS | LLAMA | settings)).eval()


MODELS = {
    "GPT-2": gpt2,
    "GPT-2, scaled by layer": partial(gpt2, scale_attn_by_inverse_layer_idx=True),
    "Llama": llama,
    "Llama 3": partial(
        llama, attention_bias=True, head_dim=12, rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }),
}  # fmt: skip
SEES_ALL = ("attention", "dense", "attention/exponential", "attention/first-order")


@pytest.mark.parametrize("name", MODELS)
def test_an_a_that_sees_all_the_past_changes_nothing(name: str) -> None:
    model = MODELS[name](initializer_range=0.1)
    batches = [prompts(padded) for padded in (False, True)]
    expected = [model(**batch).logits for batch in batches]
    for pattern, feedback in zip(SEES_ALL, ("copy", "fresh") * 2, strict=True):
        replaced = replace_attention(model, pattern, feedback=feedback)
        for batch, logits in zip(batches, expected, strict=True):
            difference = (replaced(**batch).logits - logits) * batch["attention_mask"][..., None]
            assert float(difference.detach().abs().max()) < 1e-5, (pattern, feedback)


def opened(model: PreTrainedModel) -> PreTrainedModel:
    """Feedback that matters, as if it had been trained."""
    for layer in model.mixing_layers():
        torch.nn.init.constant_(layer.feedback.gate.opening, 0.9)
    return model


@pytest.mark.parametrize(("pattern", "layers"), [
    ("exponential+cache", None), ("dense", [0, 2]), ("attention/exponential", [1]),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_cache_changes_no_token(name: str, pattern: str, layers: list[int] | None) -> None:
    model = opened(replace_attention(MODELS[name](), pattern, layers))

    def generated(padded: bool, **options: object) -> Tensor:
        torch.manual_seed(0)
        return model.generate(**prompts(padded), max_new_tokens=12, **options)

    for padded, mode in ((False, {"num_beams": 4}), (True, {"do_sample": True})):
        without = generated(padded, use_cache=False, **mode)
        for options in ({}, {"cache_implementation": "static"}, {"prefill_chunk_size": 4}):
            assert torch.equal(without, generated(padded, **options, **mode)), options


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_fifty_steps_lower_the_loss_and_open_the_gates(name: str) -> None:
    teacher = MODELS[name]()
    model = replace_attention(teacher, "exponential+cache").train()
    ids = torch.randint(1, VOCABULARY, (4, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = teacher(ids).logits.softmax(-1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(50):
        loss = -(wanted * model(ids).logits.log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = [layer.feedback.gate.opening.grad for layer in model.mixing_layers()]
            assert all(gradient.abs().min() > 0 for gradient in gradients)  # closed, and able to open
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    gates = torch.cat([layer.feedback.gate.opening.detach() for layer in model.mixing_layers()])
    assert float(gates.max()) > 0.01
    before = replace_attention(teacher, "exponential+cache").mixing_layers()[0].feedback.queries.weight
    assert not torch.equal(model.mixing_layers()[0].feedback.queries.weight, before)


def test_packed_sequences_do_not_see_each_other() -> None:
    model, ids = opened(replace_attention(gpt2(), "exponential+cache", [0, 2])), prompts()["input_ids"]
    restarting = torch.cat([torch.arange(4), torch.arange(5)]).expand(2, -1)
    packed = model(ids, position_ids=restarting).logits
    alone = torch.cat([model(ids[:, :4]).logits, model(ids[:, 4:]).logits], 1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_what_is_saved_is_loaded(name: str, tmp_path: Path) -> None:
    ids = prompts()["input_ids"]
    model = opened(replace_attention(MODELS[name](), "quadratic+cache", [0]))
    model = replace_attention(model, "local:4/first-order", [2])  # the first stays as it was trained
    assert float(model.mixing_layers()[0].feedback.gate.opening.detach().min()) == pytest.approx(0.9)
    assert model.config.replaced == ["quadratic+cache", None, "local:4/first-order"]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (tmp_path / "modeling_resolvent.py").is_file()


def test_the_original_stays_as_it_is() -> None:
    model = gpt2()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    replaced = replace_attention(model, "exponential").to(torch.float64)
    with torch.no_grad():
        for parameter in replaced.parameters():
            parameter.zero_()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert set(before) < set(replaced.state_dict())  # names stay, feedback comes on top


def test_gradient_checkpointing_changes_nothing() -> None:
    gradients = []
    for checkpointing in (False, True):
        model, ids = opened(replace_attention(llama(), "exponential+cache")).train(), prompts()["input_ids"]
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_caches_that_cannot_go_on_say_so(name: str) -> None:
    """Where transformers would leave them out, or read the same tokens twice, and only warn."""
    model, ids = replace_attention(MODELS[name](), "exponential+cache", [1]), prompts()["input_ids"]
    cache = DynamicCache(config=model.config)
    model.generate(ids, past_key_values=cache, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"the cache has seen positions up to 8.*give tokens that the cache has not"):
        model.generate(ids, past_key_values=cache, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"expected an attention_mask of the 9 tokens .* in row 0, got one of 6"):
        model(ids[:, :1], attention_mask=torch.arange(10).expand(2, -1) > 2, past_key_values=cache)
    model.train().gradient_checkpointing_enable()
    with pytest.raises(ValueError, match=r"expected model\.eval\(\) before generating, or use_cache=False"):
        model.generate(ids, max_new_tokens=2)
    assert model(ids, use_cache=True).past_key_values is None


def test_the_loss_is_named() -> None:
    """Which transformers looks for in the name of a class, and does not find in that of GPT-2's."""
    ids = prompts()["input_ids"]
    model = replace_attention(gpt2(), "exponential+cache")
    logits = model(ids).logits[:, :-1]
    torch.testing.assert_close(model(ids, labels=ids).loss, cross_entropy(logits.transpose(1, 2), ids[:, 1:]))
    assert model.loss_type == "ForCausalLM"


def test_what_cannot_work_says_what_to_do() -> None:
    model, ids = gpt2(), prompts()["input_ids"]
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    other = BertLMHeadModel(BertConfig(is_decoder=True, vocab_size=9, **small))
    with pytest.raises(TypeError, match="GPT2LMHeadModel or LlamaForCausalLM, got BertLMHeadModel"):
        replace_attention(other, "dense")
    with pytest.raises(ValueError, match=r"expected numbers of layers from 0 to 2, got \[3\]"):
        replace_attention(model, "dense", [3])
    with pytest.raises(ValueError, match="expected feedback to start as 'copy' or 'fresh'"):
        replace_attention(model, "dense", feedback="none")
    replaced = replace_attention(model, "exponential+cache", [1])
    with pytest.raises(ValueError, match=r"make it with DynamicCache\(config=model\.config\)"):
        replaced.generate(ids, past_key_values=DynamicCache(), max_new_tokens=2)
    right = torch.ones_like(ids)
    right[0, -2:] = 0
    with torch.no_grad():
        assert replaced(ids, attention_mask=right).past_key_values is None
        with pytest.raises(ValueError, match="expected padding on the left"):
            replaced(ids, attention_mask=right, use_cache=True)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        replaced.generate(ids[:1], assistant_model=gpt2(), max_new_tokens=2)
