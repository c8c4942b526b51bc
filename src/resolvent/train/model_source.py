"""Trained weights on disk, wherever they are: in a run, in a model's own folder, or in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from resolvent.errors import SettingError
from resolvent.model import LanguageModel, ModelConfig, saving
from resolvent.tensor_files import differences, sha256_of
from resolvent.train import checkpoint
from resolvent.train.config import TrainConfig
from resolvent.train.processes import SINGLE

MODEL = "model"  # the folder of a finished run's model, within that of the run


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded: where it is, what it is, a digest of its weights."""

    path: Path
    config: ModelConfig
    sha256: str
    load: Callable[[], LanguageModel]


def open_model(path: str | Path) -> ModelSource:
    """The model of a run (its last checkpoint, if it is not finished), in a folder of its own, or in a checkpoint.

    No weights are read before `load` is called.
    """
    path = Path(path)
    run = path.parent if path.name in (checkpoint.FILE, checkpoint.FOLDER) else path
    if (path / MODEL / saving.CONFIG).is_file():
        return _saved_model(path / MODEL)
    latest = checkpoint.latest(run)
    if latest is not None:
        config = latest.run.config.model
        return ModelSource(latest.path, config, sha256_of(latest.path), lambda: _of_checkpoint(run, config))
    if (path / saving.CONFIG).is_file():
        return _saved_model(path)
    state = "has none of them in it" if path.exists() else "does not exist"
    raise SettingError(
        f"expected the folder of a run or of a saved model, or a {checkpoint.FILE}, got {path}, which {state}."
    )


def _saved_model(folder: Path) -> ModelSource:
    saved = saving.read(folder)
    return ModelSource(folder, saved.config, saved.sha256, lambda: LanguageModel.load(folder))


def _of_checkpoint(run: Path, config: ModelConfig) -> LanguageModel:
    model = LanguageModel.seeded(config, 0)
    checkpoint.read(run, model, torch.optim.AdamW(model.parameters()), SINGLE)  # whose moments are dropped
    return model


def load_start(model: LanguageModel, settings: TrainConfig) -> None:
    """Copy the weights that training starts from into a new model, if the settings name any. All of them must fit."""
    if not settings.start:
        return
    source = open_model(settings.start)
    if settings.start_sha256 not in ("", source.sha256):
        raise SettingError(
            f"{source.path} is not the model that this run starts from: expected weights with sha256 "
            f"{settings.start_sha256[:16]}…, got {source.sha256[:16]}…"
        )
    start = source.load().to(model.embedding.weight.dtype)
    if wrong := differences(model.state_dict(), start.state_dict()):
        raise SettingError(
            f"the weights of {source.path} ({source.config.pattern_label}, {source.config.rule_label}) do not fit "
            f"{model.config.pattern_label}, {model.config.rule_label}: {wrong}. Take its patterns, rule and sizes: "
            "leave out --pattern, --rule and --set model.…"
        )
    model.load_state_dict(start.state_dict())
