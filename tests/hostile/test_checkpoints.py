"""Checkpoints by a stranger, or damaged: every byte is covered by a digest, every count has bounds."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from resolvent.model import LanguageModel, ModelConfig
from resolvent.tasks import Copy
from resolvent.tensor_files import UNSEALED, seal
from resolvent.train import RunConfig, TrainConfig, checkpoint, shards
from resolvent.train.loop import make_optimizer
from resolvent.train.processes import SINGLE
from resolvent.train.record import CurvePoint
from resolvent.train.state import SavedRun, TrainState
from tests.hostile.files import NOT_JSON, WRONG, leaves, replaced, write_header

CONFIG = RunConfig(
    ModelConfig(vocab_size=20, layers=1, dim=8, heads=2, pattern="dense"),
    Copy(vocab_size=20, length=4),
    TrainConfig(steps=20, batch=2),
)
STATE = TrainState(step=3, seconds=1.5, tokens=99, skipped_steps=1, average_norm=0.5, curve=(CurvePoint(2, 1.5, 0.25),))


def parts() -> tuple[LanguageModel, torch.optim.Optimizer]:
    """A model and an optimizer that has taken no step."""
    model = LanguageModel.seeded(CONFIG.model, 0)
    return model, make_optimizer(model, CONFIG.train)


def trained() -> tuple[LanguageModel, torch.optim.Optimizer]:
    """After two steps, as STATE says."""
    model, optimizer = parts()
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    return model, optimizer


@pytest.fixture(params=["replicate", "shard"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint, in one file or a folder."""
    train = dataclasses.replace(CONFIG.train, parallel=request.param)
    checkpoint.write(tmp_path, *trained(), SavedRun(dataclasses.replace(CONFIG, train=train), STATE), SINGLE)
    return tmp_path


@pytest.fixture
def single(tmp_path: Path) -> Path:
    checkpoint.write(tmp_path, *trained(), SavedRun(CONFIG, STATE), SINGLE)
    return tmp_path / checkpoint.FILE


def load(folder: Path) -> tuple[SavedRun | None, LanguageModel, torch.optim.Optimizer]:
    model, optimizer = parts()
    return checkpoint.read(folder, model, optimizer, SINGLE), model, optimizer


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], object] = lambda _: None, **metadata: str | None) -> None:
    """Another checkpoint, with its own digest."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata() | {"sha256": UNSEALED} | metadata
    tensors = {name: t.clone() for name, t in load_file(path).items()}
    change(tensors)
    save_file(tensors, path, {key: value for key, value in header.items() if value is not None})
    if header.get("sha256"):
        seal(path)


def run_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        content: dict[str, Any] = json.loads(file.metadata()["state"])
    return content


def test_what_is_written_is_read(folder: Path) -> None:
    saved, model, optimizer = load(folder)
    expected_model, expected = trained()
    assert saved is not None
    assert saved.state == STATE
    for own, other in zip(model.parameters(), expected_model.parameters(), strict=True):
        assert torch.equal(own, other)
        assert all(torch.equal(optimizer.state[own][name], expected.state[other][name]) for name in shards.MOMENTS)


def test_every_byte_counts(folder: Path) -> None:
    """A flipped bit in any file, at its beginning, its end and between."""
    for path in [path for path in folder.rglob("*") if path.is_file() and path.name != "latest"]:
        data = path.read_bytes()
        for position in {*range(0, len(data), max(len(data) // 40, 1)), 0, 7, 8, 9, len(data) - 1}:
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with pytest.raises(ValueError, match=r"damaged|not a checkpoint|incomplete|no digest"):
                load(folder)
        path.write_bytes(data)
    assert load(folder)[0] is not None


def test_files_cut_short_and_missing(folder: Path) -> None:
    for path in sorted(folder.rglob("*.safetensors")):
        data = path.read_bytes()
        for keep in (0, 4, 100, len(data) - 1):
            path.write_bytes(data[:keep])
            with pytest.raises(ValueError, match="damaged"):
                load(folder)
        path.write_bytes(data)
    for path in folder.glob("checkpoints/*/*"):
        path.rename(folder / "kept")
        with pytest.raises(ValueError, match=r"incomplete|damaged"):
            load(folder)
        (folder / "kept").rename(path)


NORM = "norm.weight"
TENSORS: list[tuple[Callable[[dict[str, Tensor]], object], str]] = [
    (lambda t: t.pop(f"optimizer/exp_avg/{NORM}"), f"of another model. missing: optimizer/exp_avg/{NORM}"),
    (lambda t: t.update({"model/other": torch.zeros(1)}), "extra: model/other"),
    (lambda t: t.update({f"model/{NORM}": torch.zeros(9)}), r"model/norm.weight is \(9,\), expected \(8,\)"),
    (lambda t: t.update({f"model/{NORM}": torch.zeros(8).bfloat16()}), "norm.weight is bfloat16, expected float32"),
    (lambda t: t.update({f"optimizer/step/{NORM}": torch.tensor(1e9)}), "expected 2 updates of each.*got 1000"),
    (lambda t: t.update({f"optimizer/step/{NORM}": torch.tensor(torch.nan)}), "expected 2 updates .*got nan"),
]
COUNTS: list[tuple[dict[str, object], str]] = [
    ({"step": 10**9}, "expected step to be at most 20 in a run of 20 steps, got 1,000,000,000"),
    ({"step": True}, "expected step to be int ≥ 0, got True"),
    ({"skipped_steps": 4}, "expected skipped_steps to be at most 3"),
    ({"skipped_in_a_row": 2}, "expected skipped_in_a_row to be at most 1"),
    ({"seconds": float("inf")}, "expected seconds to be a finite float ≥ 0, got inf"),
    ({"solved_at": 7}, "expected solved_at to be at most 3"),
    ({"curve": [[7, 1.0, 0.5]]}, "expected the last step of the curve to be at most 3"),
    ({"stp": 1}, "unknown setting 'stp' of the state of a run.*Did you mean 'step'"),
]


def test_tensors_and_counts_of_another_run(single: Path) -> None:
    """Each has a digest of its own; nothing is loaded."""
    original, content, before = single.read_bytes(), run_of(single), parts()[0].state_dict()
    damaged = "checkpoint.safetensors is damaged: .*{}.*delete it to begin"
    for change, counts, message in [
        *((change, {}, message) for change, message in TENSORS),
        *((lambda _: None, counts, damaged.format(message)) for counts, message in COUNTS),
    ]:
        single.write_bytes(original)
        rewrite(single, change, state=json.dumps(content | {"state": content["state"] | counts}))
        model, optimizer = parts()
        with pytest.raises(ValueError, match=message):
            checkpoint.read(single.parent, model, optimizer, SINGLE)
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
        assert not optimizer.state


def test_losses_that_are_not_finite_are_kept(single: Path) -> None:
    content = run_of(single)
    curve = [[2, float("nan"), float("inf")]]
    rewrite(single, state=json.dumps(content | {"state": content["state"] | {"curve": curve}}))
    saved = load(single.parent)[0]
    assert saved is not None
    assert saved.state.curve[0].value == float("inf")


def test_metadata(single: Path) -> None:
    original = single.read_bytes()
    for metadata, message in [
        *(({"state": text}, "is damaged") for text in NOT_JSON if len(text) < 10**6),  # safetensors writes no longer
        ({"state": None}, "expected the state of the run beside its tensors, got none"),
        ({"sha256": None}, "its sha256 is not the one it was written with: delete it to begin the run"),
        ({"version": "1"}, "is not a checkpoint of this release: expected resolvent-checkpoint 2"),
    ]:
        single.write_bytes(original)
        rewrite(single, **metadata)
        with pytest.raises(ValueError, match=message):
            load(single.parent)


def test_every_value_of_a_run_has_a_type(single: Path) -> None:
    content = run_of(single)
    for path in leaves(content):
        for wrong in WRONG:
            try:
                SavedRun.from_dict(replaced(content, path, wrong))
            except ValueError as error:
                assert len(str(error)) < 1000  # noqa: PT017


def test_sizes_are_compared_with_the_file(single: Path) -> None:
    huge = {"dtype": "F32", "shape": [10**11], "data_offsets": [0, 4 * 10**11]}
    meta = {"format": "resolvent-checkpoint", "version": "2"}
    write_header(single, {"__metadata__": meta, "model/norm.weight": huge})
    with pytest.raises(ValueError, match="as its header says, got 0"):
        load(single.parent)


def test_any_text_for_the_state_of_shards_and_their_pointer(tmp_path: Path) -> None:
    step = tmp_path / "checkpoints" / "step_3"
    step.mkdir(parents=True)
    (step.parent / "latest").write_text("step_3\n")
    for text in NOT_JSON:
        (step / "state.json").write_text(text)
        with pytest.raises(ValueError, match=r"state.json is damaged"):
            load(tmp_path)
    for name in ("", "step_", "../step_3", "step_" + "9" * 10**6, "\x00"):
        (step.parent / "latest").write_text(name)
        with pytest.raises(ValueError, match="and there is no such checkpoint"):
            load(tmp_path)
