"""A model of transformers: losses, masks, packed batches, saving and loading."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import resolvent as rv
from resolvent.hf import ResolventConfig, ResolventForCausalLM, ResolventModel
from resolvent.hf.tokenizer import fast_tokenizer
from resolvent.hf.versions import require_transformers
from resolvent.text import tokenizer
from tests.hf.models import VOCABULARY, prompts, tiny


def test_loss_is_that_of_the_language_model() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    loss = model(ids, labels=ids).loss
    torch.testing.assert_close(loss, model.model.stack.loss(ids[:, :-1], ids[:, 1:]))
    masked = ids.clone()
    masked[0] = -100
    expected = cross_entropy(model(ids).logits[1, :-1], ids[1, 1:])
    torch.testing.assert_close(model(ids, labels=masked).loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_hidden_states_and_embeddings() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    output = model(ids, output_hidden_states=True)
    assert [tuple(h.shape) for h in output.hidden_states] == [(2, 9, 32)] * 3
    torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, output.logits)
    assert model(ids[:0]).logits.shape == (0, 9, VOCABULARY)
    with pytest.raises(ValueError, match="expected input_ids or inputs_embeds, and not both"):
        model()
    with torch.no_grad():
        cache = model(ids).past_key_values
        after = model(ids[:, :1], past_key_values=cache, output_hidden_states=True)
    assert cache.get_seq_length() == 10
    assert len(after.hidden_states) == 3


@pytest.mark.parametrize("pattern", ["exponential+cache", "quadratic", "local:4/first-order", "attention"])
def test_padding_never_matters(pattern: str) -> None:
    """On either side, whatever stands in it, and in gradients."""
    model, ids = tiny(pattern), prompts()["input_ids"][:1]
    alone = model(ids).logits
    zeros = torch.zeros(1, 3, dtype=torch.long)
    for row in (torch.cat([zeros + 7, ids], 1), torch.cat([ids, zeros + 7], 1)):
        mask = (row != 7).long()
        mask[:, 3:-3] = 1
        logits = model(row, attention_mask=mask).logits
        torch.testing.assert_close(logits[mask != 0][None], alone, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert model(row, attention_mask=mask).past_key_values is None  # no cache goes on after padding
        with pytest.raises(ValueError, match="expected padding on the left and no packed sequences"):
            model(row, attention_mask=mask, use_cache=True)


def test_masks_that_mean_nothing_here_raise_errors() -> None:
    model, ids = tiny(), prompts()["input_ids"]
    with pytest.raises(ValueError, match=r"expected attention_mask of shape \(2, 9\).*got \(2, 1, 9, 9\)"):
        model(ids, attention_mask=torch.ones(2, 1, 9, 9))
    hole = torch.ones_like(ids)
    hole[1, 4] = 0
    with pytest.raises(ValueError, match="got zeros inside of it in row 1"):
        model(ids, attention_mask=hole)
    with pytest.raises(ValueError, match=r"expected position_ids such as \[0, 1, 2, 3\]"):
        model(ids, position_ids=torch.arange(5, 14)[None])


def test_packed_sequences_do_not_see_each_other() -> None:
    model, ids = tiny("exponential+cache"), prompts()["input_ids"]
    alone = [model(ids[:, :4]).logits, model(ids[:, 4:]).logits]
    restarting = torch.cat([torch.arange(4), torch.arange(5)])[None]
    packed = model(ids, position_ids=restarting.expand(2, -1)).logits
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)
    flat = model(ids[:1], position_ids=restarting, cu_seq_lens_q=torch.tensor([0, 4, 9])).logits
    torch.testing.assert_close(flat, packed[:1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="to count from 0 in each"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 3, 4, 5, 6]]))


def test_gradient_checkpointing_changes_nothing() -> None:
    gradients = []
    for checkpointing in (False, True):
        model, ids = tiny(dropout=0.0).train(), prompts()["input_ids"]
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        assert model.model.stack.recompute == checkpointing
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_dropout_is_for_training() -> None:
    ids = prompts()["input_ids"]
    torch.testing.assert_close(tiny(dropout=0.5)(ids).logits, tiny()(ids).logits, rtol=0, atol=0)
    model = tiny(dropout=0.5).train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)
    with torch.no_grad():  # decoding, too: the compiled function does not drop anything
        first = model(ids).past_key_values
        one, two = (model(ids[:, :1], past_key_values=c).logits for c in (first, model(ids).past_key_values))
    assert not torch.allclose(one, two)
    for wrong, message in (
        ({"dropout": 1.0}, "expected 0 ≤ dropout < 1"),
        ({"dim": 10}, "expected heads to divide dim"),
    ):
        with pytest.raises(ValueError, match=message):
            ResolventConfig(**{"heads": 4} | wrong)


@pytest.mark.parametrize("settings", [
    {"pattern": ["local:4", ["exponential", "dense"]], "rule": ["softmax", "softmax:gate=scalar@0.3"]},
    {"pattern": "first-order", "rule": "mamba2:state=8", "kv_heads": 1},
    {"bias": False, "vocab_multiple": 64, "rope": None}, {"tie_word_embeddings": False},
], ids=str)  # fmt: skip
def test_what_is_saved_is_loaded(settings: dict[str, object], tmp_path: Path) -> None:
    model, ids = tiny(**settings), prompts()["input_ids"]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ResolventForCausalLM
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (loaded.lm_head.weight is loaded.model.stack.embedding.weight) == model.config.tie_word_embeddings
    assert type(AutoModel.from_pretrained(tmp_path)) is ResolventModel
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".py", ".safetensors"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_config == model.config.model_config


def test_a_folder_is_loaded_where_the_package_is_not_imported(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    code = "from transformers import AutoModelForCausalLM\n"
    code += f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)\n"
    code += "print(type(model).__module__); model.save_pretrained('again')"
    environment = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(rv.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.strip() == "resolvent.hf.model", done.stderr
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == json.loads(
        (tmp_path / "config.json").read_text()
    )
    assert (tmp_path / "again" / "modeling_resolvent.py").read_text() == (
        tmp_path / "modeling_resolvent.py"
    ).read_text()


def test_half_precision(tmp_path: Path) -> None:
    model, ids = tiny(), prompts()["input_ids"]
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = ResolventForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded(ids).logits.dtype == torch.bfloat16
    assert ResolventForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


def test_weights_that_are_missing_raise_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.stack.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"expected all weights of the model in .*, and model\.stack\.norm\.weight are missing"
    ):
        ResolventForCausalLM.from_pretrained(tmp_path)


def test_new_models_are_initialized_as_language_models_are() -> None:
    head = tiny(init_std=None, tie_word_embeddings=False, dim=768).lm_head.weight.detach()
    assert float(head.std()) == pytest.approx(0.02, rel=0.02)
    model = tiny(init_std=0.05)
    block = model.model.stack.blocks[0]
    assert abs(float(block.mlp_in.weight.detach().std()) - 0.05) < 0.005
    assert abs(float(block.mlp_out.weight.detach().std()) - 0.025) < 0.005
    assert float(block.mixer.coefficients.gate(torch.zeros(1, 1, 32)).detach().mean()) == pytest.approx(0.5)


def test_the_vocabulary_can_be_resized() -> None:
    model, ids = tiny(vocab_multiple=64), prompts()["input_ids"]
    before = model(ids).logits
    model.resize_token_embeddings(VOCABULARY + 5, mean_resizing=False)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    torch.testing.assert_close(model(ids).logits[..., :VOCABULARY], before, rtol=0, atol=0)
    assert model(ids + 5).logits.shape[-1] == VOCABULARY + 5
    with pytest.raises(ValueError, match="expected tokens from 0 to 101"):
        model(ids + 50)


def test_bytes_are_the_same_tokens() -> None:
    ours, theirs = tokenizer("bytes"), fast_tokenizer("bytes")
    for text in ("to be", " héllo\n  x ☃ ", "a\x00b", "<|endoftext|>", "def f(x):\n\treturn  x"):
        assert theirs(text).input_ids == ours.encode(text).tolist()
        assert theirs.decode(theirs(text).input_ids) == text
    batch = theirs(["a", "bcd"], padding=True, return_tensors="pt")
    assert batch.attention_mask.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_versions_that_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    require_transformers()
    for version in ("4.57.1", "5.21.0", "6.0.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: version)  # noqa: ARG005
        with pytest.raises(ImportError, match=rf"works with transformers ≥ 5\.22 and < 6, got {version}: pip install"):
            require_transformers()
