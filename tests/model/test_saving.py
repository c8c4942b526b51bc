"""Models on disk: what is written is read, and what is wrong is refused, with nothing loaded by half."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import resolvent as rv
from resolvent.model import LanguageModel, ModelConfig
from resolvent.patterns import table as tables
from tests.operator_cases import TABLE


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=50, layers=2, dim=32, heads=4, pattern=["exponential+cache", "first-order"],
                         rule=["tied:blend=free", "mamba2"], vocab_multiple=8)  # fmt: skip
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


def test_pairs_and_tables_are_saved_with_the_model(tmp_path: Path) -> None:
    """By content: the file needs nothing but itself. One pattern for all layers, one for each, one for each head."""
    small = {"vocab_size": 50, "layers": 2, "dim": 32, "heads": 4}
    for pattern in ("attention/first-order", TABLE, [TABLE, rv.pair("local:8", TABLE)], [["fenwick"], [TABLE] * 4]):
        torch.manual_seed(0)
        model = LanguageModel(ModelConfig(**small, pattern=pattern))
        model.save(tmp_path / "model")
        loaded, tokens = LanguageModel.load(tmp_path / "model"), torch.arange(40)[None]
        assert loaded.config == model.config
        assert torch.equal(loaded(tokens), model(tokens))
        assert loaded.generate([[1, 2, 3], [4]], 5, temperature=0) == model.generate([[1, 2, 3], [4]], 5, temperature=0)
    assert model.config.pattern_label == "fenwick | " + " | ".join([str(TABLE)] * 4)
    with pytest.raises(ValueError, match="is defined for 640 tokens: expected at most as many, got 700"):
        model.generate([[1] * 100], 600)


def test_what_is_too_large_for_a_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(ModelConfig(layers=1, dim=16, heads=2, pattern=TABLE))
    monkeypatch.setattr(tables, "_MOST_WEIGHT", 1000)
    with pytest.raises(ValueError, match="the tables of reads are too large for one file"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_function_has_no_file(tmp_path: Path) -> None:
    model = LanguageModel(ModelConfig(layers=1, dim=16, heads=2, pattern=lambda k: 3 * k + 1))
    assert model(torch.arange(9)[None]).shape == (1, 9, 256)
    with pytest.raises(ValueError, match="is a Python function, which no file can hold"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


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
    (rewrite(rename), "missing: norm.weight; extra: norm.wieght. Nothing was loaded"),
    (rewrite(reshape), r"mis-shaped: norm.weight is \(33,\), expected \(32,\)"),
    (reconfigure(version=1), "expected a model of version 2, got 1"),
    (reconfigure(format="something"), "expected a model of format 'resolvent-model', got 'something'"),
    (reconfigure(model={"layers": 2, "dims": 3}), "unknown setting 'dims'"),
    (reconfigure(model={"layers": 2, "dim": 32}), "every setting of a model, and vocab_size, heads"),
    (reconfigure(weights="../model.safetensors"), "is damaged: expected weights to be the name of a file"),
    (lambda folder: weights_in(folder).unlink(), "expected the weights in"),
    (lambda folder: (folder / "config.json").unlink(), "expected a model's folder, with config.json"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_what_is_wrong_is_refused(saved: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(saved)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LanguageModel.load(saved)
