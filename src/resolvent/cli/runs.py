"""Folders of runs and of models, as commands take them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resolvent.errors import SettingError
from resolvent.tasks import Text
from resolvent.train.record import FILE, Record

if TYPE_CHECKING:
    from resolvent.model import LanguageModel
    from resolvent.text import Tokenizer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of a saved model.")]
TokenizerName = Annotated[
    str | None, typer.Option("--tokenizer", help="gpt2 or bytes.  \\[default: that of the text it was trained on]")
]


def load_model(run: Path) -> LanguageModel:
    """The model of a run, or in a folder of its own, on the device of this process."""
    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    return LanguageModel.load(model_folder(run), device=default_device())


def model_folder(run: Path) -> Path:
    """Where the model of a run is, or the folder itself."""
    return run / "model" if (run / "model" / "config.json").exists() else run


def record_of(run: Path) -> Record | None:
    """The record of a run; None for the folder of a model alone."""
    path = run / FILE
    return Record.read(path) if path.exists() else None


def trained_text(run: Path) -> Text | None:
    """The text that a run was trained on; None if it was another task, or the record is missing."""
    record = record_of(run)
    task = None if record is None else record.config.task
    return task if isinstance(task, Text) else None


def tokenizer_of(run: Path, vocab_size: int, name: str | None = None) -> Tokenizer:
    """The named tokenizer, that of the text a run was trained on, or the one that the vocabulary suggests."""
    from resolvent.text import tokenizer

    trained = trained_text(run)
    suggested = "gpt2" if vocab_size > 300 else "bytes"
    return tokenizer(name or (suggested if trained is None else trained.tokenizer))


def check_tokenizer(run: Path, tokenizer: str) -> None:
    """Raise an error if a run was trained on the tokens of another tokenizer."""
    text = trained_text(run)
    trained = tokenizer if text is None else text.tokenizer
    if trained != tokenizer:
        raise SettingError(f"{run} was trained on tokens of '{trained}', and the text has those of '{tokenizer}': "
                           f"prepare it again with --tokenizer {trained}.")  # fmt: skip
