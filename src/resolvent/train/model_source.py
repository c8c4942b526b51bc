"""Trained weights on disk, wherever they are: in a run, in a model's own folder, or in a checkpoint.

A run that is not finished has the model of its latest checkpoint. With the weights goes what is known of their
training: the settings of the run, and the tokenizer of its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from resolvent.errors import SettingError
from resolvent.fields import as_mapping
from resolvent.files import closest_path
from resolvent.model import LanguageModel, ModelConfig, saving
from resolvent.tasks import Text
from resolvent.tensor_files import differences, sha256_of
from resolvent.text import TOKENIZERS, Tokenizer, stored_tokenizer, tokenizer
from resolvent.text.tokenizer_file import FILE as TOKENIZER
from resolvent.train import checkpoint, metrics, record
from resolvent.train.config import RunConfig, TrainConfig
from resolvent.train.processes import SINGLE
from resolvent.train.record import Record
from resolvent.untrusted import read as read_json

MODEL = "model"  # the folder of a finished run's model, within that of the run
_MOST_BYTE_TOKENS = 300  # a vocabulary of bytes, and some tokens beside


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded: where it is, what it is, a digest of its weights, and the run that it comes from.

    folders  those that may have its tokenizer
    """

    path: Path
    config: ModelConfig
    sha256: str
    load: Callable[[], LanguageModel]
    run: RunConfig | None = None
    folders: tuple[Path, ...] = ()

    @property
    def text(self) -> Text | None:
        """The text that it was trained on; None if it was another task, or nobody knows."""
        task = None if self.run is None else self.run.task
        return task if isinstance(task, Text) else None

    @property
    def precision(self) -> str:
        return "float32" if self.run is None else self.run.train.precision

    def tokenizer(self, name: str | None = None) -> Tokenizer:
        """The named one, that of the text it was trained on, the one in its folder, or what its vocabulary suggests."""
        if name is not None:
            return tokenizer(name)
        if self.run is not None and self.text is None:
            raise SettingError(
                f"{self.path} was trained on {self.run.task.name}, whose tokens are not text: expected --tokenizer, "
                f"or 'resolvent runs inspect {self.path} --tokens 1,2,3', which takes token ids."
            )
        if self.text is not None and self.text.tokenizer:
            return stored_tokenizer(self.text.tokenizer, *self.folders)
        for folder in self.folders:
            if (folder / TOKENIZER).is_file():
                return tokenizer(folder)
        size = self.config.vocab_size
        if _MOST_BYTE_TOKENS < size < TOKENIZERS["gpt2"].vocab_size:
            raise SettingError(
                f"the tokenizer of {self.path}, which has {size:,} tokens, is unknown: expected --tokenizer with the "
                f"path of a {TOKENIZER}, or a {TOKENIZER} beside its weights."
            )
        return tokenizer("gpt2" if size > _MOST_BYTE_TOKENS else "bytes")

    def check_tokenizer(self, name: str) -> None:
        """Raise an error if it was trained on the tokens of another tokenizer."""
        trained = name if self.text is None else self.text.tokenizer or name
        if trained != name:
            same = trained if trained in TOKENIZERS else self.folders[0] / TOKENIZER
            raise SettingError(
                f"{self.path} was trained on tokens of '{trained}', and the text has those of '{name}': "
                f"prepare it again with --tokenizer {same}."
            )


def open_model(path: str | Path) -> ModelSource:
    """The model of a run (its last checkpoint, if it is not finished), in a folder of its own, or in a checkpoint.

    No weights are read before `load` is called.
    """
    path = Path(path)
    if path.is_file() and path.name != checkpoint.FILE and _is_model(path.parent):  # the weights of a model
        path = path.parent
    if path.is_file() and path.suffix == ".safetensors":
        return _in_file(path)
    in_run = path.name in (checkpoint.FOLDER, MODEL) and (path.parent / record.FILE).is_file()
    run = path.parent if in_run or path.name == checkpoint.FOLDER else path
    if _is_model(run / MODEL):
        return _saved_model(run / MODEL, run)
    latest = checkpoint.latest(run) if run.is_dir() else None
    if latest is not None:
        config = latest.run.config
        return ModelSource(
            latest.path, config.model, sha256_of(latest.path), lambda: _of_checkpoint(run, config.model), config, (run,)
        )
    if _is_model(path):
        return _of_transformers(path) if _kind_of_transformers(path) else _saved_model(path, path)
    if (path / metrics.FILE).is_file():
        raise SettingError(f"{path} has no model yet: it was interrupted before its first checkpoint. Train it again.")
    if path.is_dir():
        raise SettingError(f"{path} holds no run, saved model or checkpoint, as 'resolvent train' writes them.")
    state = "is none of them" if path.exists() else "does not exist"
    raise SettingError(
        f"expected the folder of a run or of a saved model, or a {checkpoint.FILE}, got {path}, which {state}."
        f"{'' if path.exists() else closest_path(path)}"
    )


def _is_model(folder: Path) -> bool:
    return (folder / saving.CONFIG).is_file() and any(folder.glob("*.safetensors"))


def _saved_model(folder: Path, run: Path) -> ModelSource:
    saved, path = saving.read(folder), run / record.FILE
    trained = Record.read(path).config if path.is_file() else None
    return ModelSource(folder, saved.config, saved.sha256, lambda: LanguageModel.load(folder), trained, (folder, run))


def _kind_of_transformers(folder: Path) -> str:
    """The type of the model that transformers saved in a folder; empty if it is a model of another library."""
    try:
        kind = as_mapping(read_json(folder / saving.CONFIG), saving.CONFIG).get("model_type")
    except ValueError:  # damaged, which those who read all of it say better
        return ""
    return kind if isinstance(kind, str) else ""


def _of_transformers(folder: Path) -> ModelSource:
    kind = _kind_of_transformers(folder)
    if kind != "resolvent":
        raise SettingError(
            f"{folder} is a Hugging Face '{kind}' model, not a resolvent model: expected one of 'resolvent train' or "
            "'resolvent convert'. 'resolvent evaluate --tasks' takes any Hugging Face model."
        )
    from resolvent.hf.config import ResolventConfig
    from resolvent.hf.convert import load, to_language_model

    config = ResolventConfig.from_pretrained(folder, local_files_only=True).model_config
    digest = hashlib.sha256("".join(map(sha256_of, sorted(folder.glob("*.safetensors")))).encode()).hexdigest()
    return ModelSource(folder, config, digest, lambda: to_language_model(load(folder)), None, (folder,))


def _in_file(path: Path) -> ModelSource:
    config = checkpoint.of_file(path).run.config

    def load() -> LanguageModel:
        model = LanguageModel.seeded(config.model, 0)
        checkpoint.load(path, model, torch.optim.AdamW(model.parameters()))
        return model

    return ModelSource(path, config.model, sha256_of(path), load, config, (path.parent,))


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
