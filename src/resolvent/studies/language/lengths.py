"""Models at longer contexts than they were trained on: perplexity by length, and by position."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError
from resolvent.fields import as_mapping
from resolvent.files import require_writable, write_text
from resolvent.model.config import ModelConfig
from resolvent.studies.grid import Cell
from resolvent.tasks.text import HELD_OUT, require_text
from resolvent.train import version1
from resolvent.train.record import Record, TextEvaluation
from resolvent.untrusted import read

if TYPE_CHECKING:
    from resolvent.model import LanguageModel

FILE = "lengths.json"
VERSION = 2
TIMES = (1, 2, 4, 8)

Evaluations = dict[tuple[int, str], TextEvaluation]  # by context, and by rope where it is not the one trained with


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


def has_positions(model: ModelConfig) -> bool:
    """Whether any layer scores what it reads: first order, for one, has nothing that positions could turn."""
    needs = [model.rule_of(layer).needs(p) for layer in range(model.layers) for p in model.patterns_of(layer)]
    return any(each.a or each.b for each in needs)


@final
@dataclass(frozen=True)
class LengthPlan:
    """What is measured of a trained model.

    times   multiples of the trained length
    ropes   rotary positions that the same weights are measured with, beside those they were trained with, if these were
            a base as it is
    tokens  of the held-out text, the first ones; None for all
    """

    times: tuple[int, ...] = TIMES
    ropes: tuple[str, ...] = ()
    tokens: int | None = None

    def asked(self, cell: Cell) -> list[tuple[int, str]]:
        """Contexts and ropes, or an error that says why not."""
        model, lengths = cell.config.model, contexts(cell, self.times)
        others = self.ropes if isinstance(model.rope, int | float) and has_positions(model) else ()
        for rope in others:
            dataclasses.replace(model, rope=rope)  # or an error
        return [(context, rope) for rope in dict.fromkeys(["", *others]) for context in lengths]

    def count(self, cell: Cell) -> int:
        """How many evaluations that is, or an error that says why not."""
        self.targets(cell)
        return len(self.asked(cell))

    def batch(self, cell: Cell, context: int) -> int:
        """Sequences at once: as many tokens as in training."""
        return max(cell.config.train.batch * require_text(cell.config.task).context // context, 1)

    def batches(self, cell: Cell, context: int) -> int | None:
        """How many batches there are; None for all."""
        return None if self.tokens is None else self.tokens // (context * self.batch(cell, context))

    def targets(self, cell: Cell) -> int:
        """How many tokens are predicted: the same at every length."""
        count = require_text(cell.config.task).opened.counts[HELD_OUT].tokens - 1
        if self.tokens is None:
            return count
        sizes = [context * self.batch(cell, context) for context in contexts(cell, self.times)]
        if not max(sizes) <= self.tokens <= count or any(self.tokens % size for size in sizes):
            raise SettingError(
                f"the same tokens must fill batches of every length: expected --tokens as a multiple of "
                f"{math.lcm(*sizes):,}, at most {count:,}, got {self.tokens:,}."
            )
        return self.tokens


ALL = LengthPlan()


def measured(cell: Cell, measurement: LengthPlan = ALL, advance: Callable[[], None] = lambda: None) -> Record:
    """The record of a finished cell, with evaluations of its model on held-out text in contexts of each length.

    Every target counts once at every length. What was measured before, and by the run itself at its own length, is
    read.
    """
    record = cell.record()
    if record is None:
        raise SettingError(f"{cell.name} is not finished: expected a record in {cell.folder}.")
    text, own, targets = require_text(cell.config.task), _evaluation(record), measurement.targets(cell)
    evaluations, model, asked = _read(cell.folder / FILE, own), None, measurement.asked(cell)
    if own.tokens == targets:
        evaluations[text.context, ""] = own
    for context, rope in asked:
        known = evaluations.get((context, rope))
        if known is None or known.tokens != targets:
            from resolvent.train.perplexity import on_text

            if model is None:
                require_writable(cell.folder)
                model = _load(cell)
            made = on_text(
                model.with_rope(rope) if rope else model, text.changed({"context": context}),
                measurement.batch(cell, context), precision=cell.config.train.precision,
                batches=measurement.batches(cell, context),
            )  # fmt: skip
            evaluations[context, rope] = dataclasses.replace(made, rope=rope)
            _write(cell.folder / FILE, own, evaluations)
        advance()
    return dataclasses.replace(record, lengths=tuple(evaluations[each] for each in asked))


def _evaluation(record: Record) -> TextEvaluation:
    if not isinstance(record.evaluation, TextEvaluation):
        raise SettingError(f"expected a run on text, got one on '{record.config.task.name}'.")
    return record.evaluation


def _write(path: Path, own: TextEvaluation, evaluations: Evaluations) -> None:
    lengths = {f"{context} {rope}".strip(): each.to_dict() for (context, rope), each in evaluations.items()}
    write_text(path, json.dumps({"version": VERSION, "loss": own.loss, "lengths": lengths}, indent=1) + "\n")


def _read(path: Path, own: TextEvaluation) -> Evaluations:
    """What was measured before, unless the cell has been trained again since."""
    if not path.exists():
        return {}
    try:
        content = as_mapping(read(path), "measurements")
        version, lengths = content.get("version", 1), as_mapping(content.get("lengths"), "lengths")
        evaluations = {_key(key): _from_dict(as_mapping(value, key), version) for key, value in lengths.items()}
    except ValueError as error:
        raise SettingError(f"{path} is damaged ({error}): delete it to measure again.") from error
    return evaluations if content.get("loss") == own.loss else {}


def _key(text: str) -> tuple[int, str]:
    context, _, rope = text.partition(" ")
    return int(context), rope


def _from_dict(values: Mapping[str, object], version: object) -> TextEvaluation:
    return TextEvaluation.from_dict(version1.evaluation(values) if version == 1 else values)


def _load(cell: Cell) -> LanguageModel:
    import torch

    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    torch.set_num_threads(cell.config.train.threads)  # as in training, so that numbers do not depend on the machine
    return LanguageModel.load(cell.folder / "model").to(default_device())
