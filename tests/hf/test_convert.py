"""Conversion between our folders and those of transformers: exact to the bit, both ways."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.hf import ResolventForCausalLM, from_language_model, to_language_model
from resolvent.model import LanguageModel, ModelConfig
from tests.hf.models import tiny

CONFIGS = [
    ModelConfig(
        vocab_size=257, layers=2, dim=32, heads=2, vocab_multiple=64, pattern=["local:8", ["dense", "order:3"]]
    ),
    ModelConfig(
        vocab_size=60, layers=2, dim=32, heads=4, kv_heads=2, pattern="exponential+cache", rule=["tied", "joint"]
    ),
    ModelConfig(vocab_size=60, layers=1, dim=32, heads=4, pattern="first-order", rule="mamba1:conv=4", bias=False),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.pattern_label)
def test_both_ways_to_the_bit(config: ModelConfig, dtype: torch.dtype, tmp_path: Path) -> None:
    model, ids = LanguageModel.seeded(config, 0).to(dtype), torch.arange(50).reshape(2, 25)
    converted = from_language_model(model)
    assert torch.equal(converted(ids).logits, model(ids))
    converted.save_pretrained(tmp_path)
    back = to_language_model(ResolventForCausalLM.from_pretrained(tmp_path, dtype="auto"))
    assert back.config == config
    assert all(torch.equal(t, back.state_dict()[name]) for name, t in model.state_dict().items())
    assert all(p.requires_grad for p in back.parameters())


def test_copies_share_nothing() -> None:
    model = LanguageModel.seeded(CONFIGS[0], 0)
    converted = from_language_model(model)
    with torch.no_grad():
        converted.model.stack.norm.weight.zero_()
    assert float(model.norm.weight.detach().min()) == 1


def test_a_head_of_its_own_has_no_counterpart() -> None:
    with pytest.raises(ValueError, match="expected tie_word_embeddings=True"):
        to_language_model(tiny(tie_word_embeddings=False))


def test_the_command(tmp_path: Path) -> None:
    original, theirs, back = (tmp_path / name for name in ("original", "theirs", "back"))
    LanguageModel.seeded(CONFIGS[0], 0).save(original)
    for source, target, more in ((original, theirs, ["--tokenizer", "bytes"]), (theirs, back, [])):
        done = CliRunner().invoke(app, ["convert", str(source), str(target), *more], catch_exceptions=False)
        assert done.exit_code == 0
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in original.iterdir()
    }
    assert AutoTokenizer.from_pretrained(theirs)("to be").input_ids == [116, 111, 32, 98, 101]
    with pytest.raises(FileExistsError, match="expected a new or an empty folder"):
        CliRunner().invoke(app, ["convert", str(theirs), str(back)], catch_exceptions=False)
    with pytest.raises(ValueError, match="holds no run, saved model or checkpoint"):
        CliRunner().invoke(app, ["convert", str(tmp_path), str(tmp_path / "new")], catch_exceptions=False)
