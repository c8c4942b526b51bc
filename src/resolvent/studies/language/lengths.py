"""Models at longer contexts than they were trained on: perplexity by length, and by position."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import SettingError
from resolvent.fields import as_mapping
from resolvent.files import require_writable, write_text
from resolvent.studies.grid import Cell
from resolvent.tasks.text import HELD_OUT, require_text
from resolvent.train import version1
from resolvent.train.evaluations import TextEvaluation
from resolvent.train.record import Record
from resolvent.untrusted import read

if TYPE_CHECKING:
    from resolvent.model import LanguageModel

FILE = "lengths.json"
VERSION = 2
TIMES = (1, 2, 4, 8)

Evaluations = dict[int, TextEvaluation]  # by context


def contexts(cell: Cell, times: Sequence[int]) -> list[int]:
    """The trained length and its multiples, which the held-out text must be longer than."""
    if not times or min(times) < 1:
        raise SettingError(f"expected multiples of the trained length, 1 or more, got {list(times)}.")
    text = require_text(cell.config.task)
    longest, tokens = max(times) * text.context, text.opened.counts[HELD_OUT].tokens
    if longest >= tokens:
        raise SettingError(
            f"{text.corpus} is too short for contexts of {longest:,}: expected more tokens of {HELD_OUT}, got "
            f"{tokens:,}. Use smaller --times, a shorter task.context or a longer text."
        )
    return [text.context * factor for factor in sorted({1, *times})]


def measured(cell: Cell, times: Sequence[int] = TIMES, advance: Callable[[], None] = lambda: None) -> Record:
    """The record of a finished cell, with evaluations of its model on held-out text in contexts of each length.

    Every target counts once at every length. What was measured before, and by the run itself at its own length, is
    read.
    """
    record = cell.record()
    if record is None:
        raise SettingError(f"{cell.name} is not finished: expected a record in {cell.folder}.")
    text, settings, own = require_text(cell.config.task), cell.config.train, _evaluation(record)
    evaluations, model = {**_read(cell.folder / FILE, own), text.context: own}, None
    for context in contexts(cell, times):
        if context not in evaluations:
            from resolvent.train.perplexity import on_text

            if model is None:
                require_writable(cell.folder)
                model = _load(cell)
            batch = max(settings.batch * text.context // context, 1)  # as many tokens at once as in training
            longer = text.changed({"context": context})
            evaluations[context] = on_text(model, longer, batch, precision=settings.precision)
            _write(cell.folder / FILE, own, evaluations)
        advance()
    return dataclasses.replace(record, lengths=tuple(evaluations[context] for context in contexts(cell, times)))


def _evaluation(record: Record) -> TextEvaluation:
    if not isinstance(record.evaluation, TextEvaluation):
        raise SettingError(f"expected a run on text, got one on '{record.config.task.name}'.")
    return record.evaluation


def _write(path: Path, own: TextEvaluation, evaluations: Evaluations) -> None:
    lengths = {str(context): evaluation.to_dict() for context, evaluation in evaluations.items()}
    write_text(path, json.dumps({"version": VERSION, "loss": own.loss, "lengths": lengths}, indent=1) + "\n")


def _read(path: Path, own: TextEvaluation) -> Evaluations:
    """What was measured before, unless the cell has been trained again since."""
    if not path.exists():
        return {}
    try:
        content = as_mapping(read(path), "measurements")
        version, lengths = content.get("version", 1), as_mapping(content.get("lengths"), "lengths")
        evaluations = {int(key): _from_dict(as_mapping(value, key), version) for key, value in lengths.items()}
    except ValueError as error:
        raise SettingError(f"{path} is damaged ({error}): delete it to measure again.") from error
    return evaluations if content.get("loss") == own.loss else {}


def _from_dict(values: Mapping[str, object], version: object) -> TextEvaluation:
    return TextEvaluation.from_dict(version1.evaluation(values) if version == 1 else values)


def _load(cell: Cell) -> LanguageModel:
    import torch

    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    torch.set_num_threads(cell.config.train.threads)  # as in training, so that numbers do not depend on the machine
    return LanguageModel.load(cell.folder / "model").to(default_device())
