"""Models on disk: what is written is read, and what is wrong is refused, with nothing loaded by half."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from resolvent.model import LanguageModel, ModelConfig


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=50, layers=2, dim=32, heads=4, pattern=["exponential+cache", "first-order"],
                         coefficients=["tied", "mamba"], vocab_multiple=8)  # fmt: skip
    return LanguageModel(config).save(tmp_path / "model")


def test_round_trip(saved: Path) -> None:
    model = LanguageModel.load(saved)
    tokens = torch.arange(20)[None]
    torch.manual_seed(0)
    torch.testing.assert_close(model(tokens), LanguageModel(model.config)(tokens), rtol=0, atol=0)
    assert model.config.pattern == ("exponential+cache", "first-order")
    model.loss(tokens, tokens).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert sorted(path.suffix for path in saved.iterdir()) == [".json", ".safetensors"]


def test_a_second_save_replaces_the_first(saved: Path) -> None:
    other = LanguageModel(ModelConfig(layers=1))
    other.save(saved)
    assert LanguageModel.load(saved).config == other.config
    assert len(list(saved.iterdir())) == 2


def test_a_save_that_is_cut_short_leaves_the_model_before(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = LanguageModel.load(saved)
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target.name == "config.json":
            raise OSError("no space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        LanguageModel(ModelConfig(layers=1)).save(saved)
    monkeypatch.undo()
    assert LanguageModel.load(saved).config == before.config
    assert not list(saved.glob(".*"))


def weights_in(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def rewrite(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(weights_in(folder))
        change(weights)
        save_file(weights, weights_in(folder))

    return damage


def reconfigure(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | changes))

    return damage


def truncate(folder: Path) -> None:
    data = weights_in(folder).read_bytes()
    weights_in(folder).write_bytes(data[: len(data) // 2])


def flip_a_bit(folder: Path) -> None:
    data = bytearray(weights_in(folder).read_bytes())
    data[-5] ^= 1
    weights_in(folder).write_bytes(bytes(data))


def rename(weights: dict[str, torch.Tensor]) -> None:
    weights["norm.wieght"] = weights.pop("norm.weight")


def reshape(weights: dict[str, torch.Tensor]) -> None:
    weights["norm.weight"] = torch.ones(33)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "safetensors is damaged"),
    (flip_a_bit, "damaged, or of another model"),
    (lambda folder: weights_in(folder).write_text("hello, this is no model at all"), "is damaged"),
    (rewrite(rename), "missing: norm.weight; extra: norm.wieght. Nothing was loaded"),
    (rewrite(reshape), r"mis-shaped: norm.weight is \(33,\), expected \(32,\)"),
    (reconfigure(version=2), "has format version 2, and this release reads 1"),
    (reconfigure(format="something"), "describes no model of this library"),
    (reconfigure(model={"layers": 2, "dims": 3}), "unknown setting 'dims'"),
    (reconfigure(model=ModelConfig(layers=3, dim=32, heads=4, vocab_size=50).to_dict()), "missing: blocks.1.mixer"),
    (reconfigure(model={"layers": 2, "dim": 32}), "every setting of a model, and vocab_size, heads"),
    (reconfigure(weights="../model.safetensors"), "incomplete or damaged: expected weights"),
    (lambda folder: (folder / "config.json").write_text('{"format": '), "config.json is damaged: expected JSON"),
    (lambda folder: weights_in(folder).unlink(), "expected the weights in"),
    (lambda folder: (folder / "config.json").unlink(), "expected a model's folder, with config.json"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_what_is_wrong_is_refused(saved: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(saved)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LanguageModel.load(saved)
