"""Models at longer contexts than they were trained on: perplexity by length, and by place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from resolvent.files import write_text
from resolvent.model import LanguageModel
from resolvent.studies.grid import Cell
from resolvent.train.perplexity import on_text
from resolvent.train.processes import Processes
from resolvent.train.text import HELD_OUT, Text

FOUND = "lengths.json"
TIMES = (1, 2, 4, 8)


def contexts(cell: Cell, times: Sequence[int]) -> list[int]:
    """The trained length and its multiples, which the held-out text must be longer than."""
    if not times or min(times) < 1:
        raise ValueError(f"expected multiples of the trained length, 1 or more, got {list(times)}.")
    task = cell.config.make_task()
    if not isinstance(task, Text):
        raise ValueError(f"expected a run on text, got {cell.name}.")
    longest, tokens = max(times) * task.context, task.opened.counts[HELD_OUT].tokens
    if longest >= tokens:
        raise ValueError(
            f"{task.corpus} is too short for contexts of {longest:,}: expected more tokens of {HELD_OUT}, got "
            f"{tokens:,}. Use smaller --times, a shorter task.context or a longer text."
        )
    return [task.context * factor for factor in sorted({1, *times})]


def measured(cell: Cell, times: Sequence[int] = TIMES, advance: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The record of a finished cell, with `lengths`: what its model does on held-out text in contexts of each length.

    Every target counts once at every length. What was measured before, by the run itself at its own length, is read.
    """
    record = cell.done()
    if record is None:
        raise ValueError(f"{cell.name} is not finished: expected a record in {cell.folder}.")
    found, model = _read(cell.folder / FOUND, record), None
    found[str(cell.config.task["context"])] = record["evaluation"]
    for length in contexts(cell, times):
        if str(length) not in found:
            model = model or _model(cell)
            how, here = cell.config.train, Text(**_settings(cell) | {"context": length})
            batch = max(how.batch * cell.config.task["context"] // length, 1)  # as many tokens at once as in training
            found[str(length)] = on_text(model, here, batch, precision=how.precision)
            content = {"loss": record["evaluation"]["loss"], "lengths": found}
            write_text(cell.folder / FOUND, json.dumps(content, indent=1) + "\n")
        advance()
    return {**record, "lengths": [found[str(length)] for length in contexts(cell, times)]}


def _read(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What was measured before, unless the run has been made anew since."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        same, found = content["loss"] == record["evaluation"]["loss"], dict(content["lengths"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): delete it to measure again.") from error
    return found if same else {}


def _model(cell: Cell) -> LanguageModel:
    torch.set_num_threads(cell.config.train.threads)  # as in training, so that numbers do not depend on the machine
    with Processes.joined() as processes:
        return LanguageModel.load(cell.folder / "model").to(processes.device)


def _settings(cell: Cell) -> dict[str, Any]:
    return {key: value for key, value in cell.config.task.items() if key != "name"}
