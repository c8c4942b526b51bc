"""A model with what is known of its training: from the folder of a run, the folder of a model, or a checkpoint.

A run that is not finished has the model of its latest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resolvent.errors import SettingError
from resolvent.model import LanguageModel
from resolvent.model.saving import CONFIG
from resolvent.tasks import Text
from resolvent.text import TOKENIZERS, Tokenizer, stored_tokenizer, tokenizer
from resolvent.text.tokenizer_file import FILE as TOKENIZER
from resolvent.text.tokenizer_file import FileTokenizer
from resolvent.train import checkpoint, metrics, record
from resolvent.train.config import RunConfig
from resolvent.train.processes import default_device
from resolvent.train.record import Record

MODEL = "model"  # the folder of the model in the folder of a run
_MOST_BYTES_TOKENS = 300  # a vocabulary of bytes, and some tokens beside


@dataclass(frozen=True)
class TrainedModel:
    """A model, and the settings of the run that it comes from, where they are known."""

    path: Path
    model: LanguageModel
    config: RunConfig | None
    folders: tuple[Path, ...]  # that may have its tokenizer

    @property
    def text(self) -> Text | None:
        """The text that it was trained on; None if it was another task, or nobody knows."""
        task = None if self.config is None else self.config.task
        return task if isinstance(task, Text) else None

    @property
    def precision(self) -> str:
        return "float32" if self.config is None else self.config.train.precision

    def tokenizer(self, name: str | None = None) -> Tokenizer:
        """The named one, that of the text it was trained on, the one in its folder, or what its vocabulary suggests."""
        if name is not None:
            return tokenizer(name)
        if self.config is not None and self.text is None:
            raise SettingError(
                f"{self.path} was trained on {self.config.task.name}, whose tokens are not text: expected --tokenizer, "
                "or 'resolvent inspect' with --tokens."
            )
        if self.text is not None and self.text.tokenizer:
            return stored_tokenizer(self.text.tokenizer, *self.folders)
        for folder in self.folders:
            if (folder / TOKENIZER).is_file():
                return FileTokenizer(folder)
        size = self.model.vocab_size
        if _MOST_BYTES_TOKENS < size < TOKENIZERS["gpt2"].vocab_size:
            raise SettingError(
                f"nobody knows the tokenizer of {self.path}, which has {size:,} tokens: expected --tokenizer with the "
                f"path of a {TOKENIZER}, or a {TOKENIZER} beside its weights."
            )
        return tokenizer("gpt2" if size > _MOST_BYTES_TOKENS else "bytes")

    def check_tokenizer(self, name: str) -> None:
        """Raise an error if it was trained on the tokens of another tokenizer."""
        trained = name if self.text is None else self.text.tokenizer or name
        if trained != name:
            same = trained if trained in TOKENIZERS else self.folders[0] / TOKENIZER
            raise SettingError(f"{self.path} was trained on tokens of '{trained}', and the text has those of '{name}': "
                               f"prepare it again with --tokenizer {same}.")  # fmt: skip


def load_trained(path: str | Path) -> TrainedModel:
    """The model at a path, on the device of this process."""
    path = Path(path)
    if not path.exists():
        raise SettingError(f"there is no {path}: {_expected()}.")
    run, config, model = _find(path)
    if model is None:
        raise SettingError(_missing(path))
    folders = tuple(folder for folder in dict.fromkeys((run, run / MODEL, path)) if folder.is_dir())
    return TrainedModel(path, model.to(default_device()), config, folders)


def _find(path: Path) -> tuple[Path, RunConfig | None, LanguageModel | None]:
    """The folder of the run or model, the settings of the run, and the model, each if there is one."""
    if path.is_file():
        if (path.parent / CONFIG).is_file() and path.name != checkpoint.FILE:  # weights of a model
            return _find(path.parent)
        if path.suffix != ".safetensors":
            raise SettingError(f"{path} is not a model: {_expected()}.")
        saved, model = checkpoint.read_model(path)
        return path.parent, saved.config, model
    if path.name == checkpoint.FOLDER and not _is_model(path):
        return _find(path.parent)
    if path.name == MODEL and (path.parent / record.FILE).is_file():
        return _find(path.parent)
    if (path / record.FILE).is_file() and _is_model(path / MODEL):
        return path, Record.read(path / record.FILE).config, LanguageModel.load(path / MODEL)
    latest = checkpoint.latest_model(path)
    if latest is not None:
        return path, latest[0].config, latest[1]
    return path, None, LanguageModel.load(path) if _is_model(path) else None


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and any(folder.glob("*.safetensors"))


def _missing(path: Path) -> str:
    if (path / metrics.FILE).exists():
        return f"{path} has no model yet: it was interrupted before its first checkpoint. Train it again."
    return f"{path} has no model: {_expected()}."


def _expected() -> str:
    return (
        f"expected the folder of a run ({record.FILE}, or a checkpoint), the folder of a model ({CONFIG} and weights), "
        f"or a {checkpoint.FILE}"
    )
