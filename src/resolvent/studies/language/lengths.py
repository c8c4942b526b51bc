"""Models in other contexts than they were trained on, measured once: the evaluations are kept beside the run.

Longer ones on all held-out text, perplexity by length and by position; shorter ones on the same targets, which says
what a longer context is worth.
"""

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
from resolvent.tasks.text import HELD_OUT, Text, require_text
from resolvent.train import version1
from resolvent.train.config import TrainConfig
from resolvent.train.evaluations import TextEvaluation
from resolvent.train.record import Record
from resolvent.untrusted import read

if TYPE_CHECKING:
    from resolvent.model import LanguageModel

FILE = "lengths.json"
SHORTER_FILE = "same-targets.json"
VERSION = 2
TIMES = (1, 2, 4, 8)
SHORTEST = 32  # tokens of context
_SCORED = 8  # targets of each window, in shorter contexts

Evaluations = dict[int, TextEvaluation]  # by context
Evaluate = Callable[["LanguageModel", Text, int, TrainConfig], TextEvaluation]  # a model, in contexts of one length


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
    return _measured(cell, FILE, contexts(cell, times), _on_all_targets, advance, keeps_own=True)


def shorter_contexts(cell: Cell) -> list[int]:
    """The trained length, and its halves down to 32 tokens, or to an eighth of a length that is less than 256."""
    text = require_text(cell.config.task)
    longest, tokens = text.context, text.opened.counts[HELD_OUT].tokens
    if longest >= tokens:
        raise SettingError(
            f"{text.corpus} is too short for contexts of {longest:,}: expected more tokens of {HELD_OUT}, got "
            f"{tokens:,}. Use a shorter task.context or a longer text."
        )
    shortest = min(SHORTEST, max(longest // 8, 1))
    return sorted({longest, *(shortest << i for i in range(longest.bit_length()) if shortest << i < longest)})


def measured_on_same_targets(cell: Cell, advance: Callable[[], None] = lambda: None) -> Record:
    """The record of a finished cell, with evaluations of its model on the same targets in contexts of each length."""
    return _measured(cell, SHORTER_FILE, shorter_contexts(cell), _on_same_targets, advance, keeps_own=False)


def _on_all_targets(model: LanguageModel, text: Text, context: int, settings: TrainConfig) -> TextEvaluation:
    from resolvent.train.perplexity import on_text

    batch = max(settings.batch * text.context // context, 1)  # as many tokens at once as in training
    return on_text(model, text.changed({"context": context}), batch, precision=settings.precision)


def _on_same_targets(model: LanguageModel, text: Text, context: int, settings: TrainConfig) -> TextEvaluation:
    from resolvent.train.perplexity import on_last_targets

    batch, scored = max(settings.batch * text.context // context, 1), min(_SCORED, max(text.context // 8, 1))
    return on_last_targets(model, text, context, batch, scored, precision=settings.precision)


def _measured(
    cell: Cell, file: str, lengths: Sequence[int], evaluate: Evaluate, advance: Callable[[], None], *, keeps_own: bool
) -> Record:  # fmt: skip
    """With an evaluation at each length; at the trained one it is the run's own, if that is of the same kind."""
    record = cell.record()
    if record is None:
        raise SettingError(f"{cell.name} is not finished: expected a record in {cell.folder}.")
    text, own, model = require_text(cell.config.task), _evaluation(record), None
    evaluations = _read(cell.folder / file, own) | ({text.context: own} if keeps_own else {})
    for context in lengths:
        if context not in evaluations:
            if model is None:
                require_writable(cell.folder)
                model = _load(cell)
            evaluations[context] = evaluate(model, text, context, cell.config.train)
            _write(cell.folder / file, own, evaluations)
        advance()
    return dataclasses.replace(record, lengths=tuple(evaluations[context] for context in lengths))


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
