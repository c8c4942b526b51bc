"""Folders of models by a stranger: refused in a line, before a pattern is parsed or a layer is built."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from resolvent.model import LanguageModel, ModelConfig
from resolvent.model.config import MOST_LAYERS, MOST_PATTERNS
from tests.counting import calls, peak_bytes
from tests.hostile.files import NOT_JSON, WRONG, leaves, replaced, write_header


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return LanguageModel(ModelConfig(vocab_size=20, layers=2, dim=8, heads=2)).save(tmp_path / "model")


def weights_in(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def content_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


def reconfigure(folder: Path, **settings: object) -> None:
    content = content_of(folder)
    content["model"] |= settings
    (folder / "config.json").write_text(json.dumps(content))


def reweigh(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Other weights, with their own digest."""
    save_file(weights, weights_in(folder))
    content = content_of(folder) | {"sha256": hashlib.sha256(weights_in(folder).read_bytes()).hexdigest()}
    (folder / "config.json").write_text(json.dumps(content))


CLAIMS: list[tuple[dict[str, object], str]] = [
    ({"layers": 10**5}, "expected 100,000 layers, as its settings say, got weights of 2"),
    ({"dim": 10**12, "heads": 10**12}, "expected embeddings of dim 1000000000000"),
    ({"vocab_size": 10**9}, "embedding.weight is"),
    ({"ff_dim": 10**30}, "expected ff_dim to be an integer ≥ 1 or None, at most 2,147,483,647"),
    ({"pattern": "stride:" + "k+" * 10**6 + "1"}, "too long"),
    ({"rule": "mamba2:state=1000000000", "pattern": "first-order"}, "does not fit the model|is damaged"),
    ({"rule": "x" * 10**6}, "unknown rule 'xxx"),
    ({"rope": 1e999}, "expected rope to be a finite number > 0, or None, got inf"),
    ({"bias": "no"}, "expected bias to be True or False, got 'no'"),
    ({"pattern": [["dense", ["dense"]], "dense"]}, "expected each pattern by its name"),
]  # fmt: skip


def test_claims_are_compared_with_the_weights(saved: Path) -> None:
    original = (saved / "config.json").read_text()
    for settings, message in CLAIMS:
        (saved / "config.json").write_text(original)
        reconfigure(saved, **settings)
        with pytest.raises(ValueError, match=message) as error:
            LanguageModel.load(saved)
        assert len(str(error.value)) < 2000


def test_a_window_longer_than_any_text_is_not_listed(saved: Path) -> None:
    reconfigure(saved, pattern="order:1000000000000")
    assert peak_bytes(lambda: LanguageModel.load(saved)) < 1 << 28  # mostly what torch imports at first


def test_no_layer_is_built_for_a_claim(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reconfigure(saved, layers=MOST_LAYERS)
    monkeypatch.setattr("resolvent.model.language_model.Block", None)
    monkeypatch.setattr("resolvent.model.config.as_pattern", None)
    with pytest.raises(ValueError, match="expected 10,000 layers"):
        LanguageModel.load(saved)


def test_equal_layers_are_looked_at_once() -> None:
    many = calls(lambda: ModelConfig(layers=MOST_LAYERS))
    few = calls(lambda: ModelConfig(layers=1))
    assert many < few + 20 * MOST_LAYERS
    with pytest.raises(ValueError, match=f"layers to be an integer ≥ 1, at most {MOST_LAYERS:,}"):
        ModelConfig(layers=MOST_LAYERS + 1)
    different = [[f"offsets:1,{2 + layer * 64 + head}" for head in range(64)] for layer in range(200)]
    with pytest.raises(ValueError, match=f"at most {MOST_PATTERNS:,} different patterns"):
        ModelConfig(layers=200, dim=64, heads=64, pattern=different)


def test_every_value_has_a_type(saved: Path) -> None:
    """A wrong value anywhere is refused, or means something: null where there is a default, another rope."""
    content = content_of(saved)
    taken = []
    for path in leaves(content):
        for wrong in WRONG:
            (saved / "config.json").write_text(json.dumps(replaced(content, path, wrong)))
            try:
                LanguageModel.load(saved)
            except (ValueError, FileNotFoundError) as error:
                assert len(str(error)) < 1000  # noqa: PT017
            else:
                taken.append((*path, repr(wrong)))
    assert set(taken) == {
        ("model", "ff_dim", "None"), ("model", "kv_heads", "None"), ("model", "rope", "None"), ("model", "rope", "0.5"),
        ("model", "rope", str(10**30)), ("model", "init_std", "None"), ("model", "init_std", "0.5"),
        ("model", "bias", "True"), ("model", "init_std", str(10**30)),
    }  # fmt: skip


HEADERS: list[tuple[Callable[[Path], None], str]] = [
    (lambda path: write_header(path, b"{}", length=2**63), "expected a header of 9,223,372,036,854,775,808 bytes"),
    (lambda path: write_header(path, b" " * (17 << 20)), "expected a header of at most 16,777,216 bytes"),
    (lambda path: write_header(path, b'{"a":' * 10**5 + b"1" + b"}" * 10**5), "nested so deep"),
    (lambda path: write_header(path, {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}),
     "expected 4,000,000,000,000 bytes of tensors, as its header says, got 0"),
    (lambda path: write_header(path, {"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 0]}}), "a dtype of"),
    (lambda path: write_header(path, {"a": None}), "expected a dtype of"),
    (lambda path: write_header(path, {"__metadata__": {"a": 1}}), "to be text"),
    (lambda path: write_header(path, {}), "expected all of one dtype.*got no tensors"),
    (lambda path: path.write_bytes(b""), "a file of 0"),
    (lambda path: path.write_bytes(struct.pack("<Q", 5)), "a file of 8"),
]  # fmt: skip


def test_any_text_for_a_header_or_a_config(saved: Path) -> None:
    for damage, message in HEADERS:
        damage(weights_in(saved))
        with pytest.raises(ValueError, match=message):
            LanguageModel.load(saved)
    for text in NOT_JSON:
        (saved / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config.json is damaged"):
            LanguageModel.load(saved)


def test_weights_have_one_dtype(saved: Path, tmp_path: Path) -> None:
    weights = load_file(weights_in(saved))
    for changed, message in (
        (weights | {"norm.weight": weights["norm.weight"].bfloat16()}, "expected all of one dtype"),
        ({name: t.bfloat16() for name, t in weights.items()}, "has weights of bfloat16, expected 'float32', as in"),
    ):
        reweigh(saved, changed)
        with pytest.raises(ValueError, match=message):
            LanguageModel.load(saved)
    half = LanguageModel(ModelConfig(vocab_size=20, layers=1, dim=8, heads=2)).bfloat16()
    assert LanguageModel.load(half.save(tmp_path / "half")).norm.weight.dtype == torch.bfloat16
    half.norm.float()
    with pytest.raises(ValueError, match="these weights cannot be a model's weights: expected all of one dtype"):
        half.save(tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
