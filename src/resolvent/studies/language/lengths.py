"""Models in other contexts than they were trained on, measured once: the evaluations are kept beside the run.

Longer ones on all held-out text, perplexity by length and by position; shorter ones on the same targets, which says
what a longer context is worth.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError, shortened
from resolvent.fields import as_mapping
from resolvent.files import require_writable, write_text
from resolvent.model.config import ModelConfig
from resolvent.rules.rope import rope_setting
from resolvent.studies.grid import Cell
from resolvent.tasks.text import HELD_OUT, require_text
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

Condition = tuple[int, str]  # a context, and a rope where it is not the one trained with
Evaluations = dict[Condition, TextEvaluation]
Evaluate = Callable[["LanguageModel", int], TextEvaluation]  # a model, in contexts of one length


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

    def conditions(self, cell: Cell) -> list[Condition]:
        """Contexts and ropes, or an error that says why not."""
        model, lengths = cell.config.model, contexts(cell, self.times)
        others = self.ropes if isinstance(model.rope, int | float) and has_positions(model) else ()
        for rope in others:
            dataclasses.replace(model, rope=rope_setting(rope))  # or an error
        return [(context, rope) for rope in dict.fromkeys(["", *others]) for context in lengths]

    def count(self, cell: Cell) -> int:
        """How many evaluations that is, or an error that says why not."""
        self.targets(cell)
        return len(self.conditions(cell))

    def batches(self, cell: Cell, context: int) -> int | None:
        """How many batches there are; None for all."""
        return None if self.tokens is None else self.tokens // (context * _batch(cell, context))

    def targets(self, cell: Cell) -> int:
        """How many tokens are predicted: the same at every length."""
        count = require_text(cell.config.task).opened.counts[HELD_OUT].tokens - 1
        if self.tokens is None:
            return count
        sizes = [context * _batch(cell, context) for context in contexts(cell, self.times)]
        if not max(sizes) <= self.tokens <= count or any(self.tokens % size for size in sizes):
            raise SettingError(
                f"the same tokens must fill batches of every length: expected --tokens as a multiple of "
                f"{math.lcm(*sizes):,}, at most {count:,}, got {self.tokens:,}."
            )
        return self.tokens


ALL = LengthPlan()


def measured(cell: Cell, plan: LengthPlan = ALL, advance: Callable[[], None] = lambda: None) -> Record:
    """The record of a finished cell, with evaluations of its model on held-out text in contexts of each length.

    Every target counts once at every length. What was measured before, and by the run itself at its own length, is
    read.
    """

    def evaluate(model: LanguageModel, context: int) -> TextEvaluation:
        from resolvent.train.perplexity import on_text

        text, precision = require_text(cell.config.task).changed({"context": context}), cell.config.train.precision
        return on_text(model, text, _batch(cell, context), precision=precision, batches=plan.batches(cell, context))

    return _measured(cell, FILE, plan.conditions(cell), evaluate, advance, plan.targets(cell))


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
    text, precision = require_text(cell.config.task), cell.config.train.precision
    scored = min(_SCORED, max(text.context // 8, 1))

    def evaluate(model: LanguageModel, context: int) -> TextEvaluation:
        from resolvent.train.perplexity import on_last_targets

        return on_last_targets(model, text, context, _batch(cell, context), scored, precision=precision)

    conditions = [(context, "") for context in shorter_contexts(cell)]
    return _measured(cell, SHORTER_FILE, conditions, evaluate, advance)


def _batch(cell: Cell, context: int) -> int:
    """Sequences at once: as many tokens as in training."""
    return max(cell.config.train.batch * require_text(cell.config.task).context // context, 1)


def _measured(
    cell: Cell,
    file: str,
    conditions: Sequence[Condition],
    evaluate: Evaluate,
    advance: Callable[[], None],
    targets: int | None = None,
) -> Record:
    """With an evaluation in each condition, of so many `targets`: those that have others are made again.

    The run's own is taken at the trained length if it has as many. Without a number, what was measured before is taken
    as it is, and the run's own, which is of another kind, is not.
    """
    record = cell.record()
    if record is None:
        raise SettingError(f"{cell.name} is not finished: expected a record in {cell.folder}.")
    text, own, model = require_text(cell.config.task), _evaluation(record), None
    evaluations = _brought(record, file) | _read(cell.folder / file, own)
    if own.tokens == targets:
        evaluations[text.context, ""] = own
    for context, rope in conditions:
        known = evaluations.get((context, rope))
        if known is None or targets not in (None, known.tokens):
            if model is None:
                require_writable(cell.folder)
                model = _load(cell)
            made = evaluate(model.with_rope(rope_setting(rope)) if rope else model, context)
            evaluations[context, rope] = dataclasses.replace(made, rope=rope)
            _write(cell.folder / file, own, evaluations)
        advance()
    return dataclasses.replace(record, lengths=tuple(evaluations[each] for each in conditions))


def _brought(record: Record, file: str) -> Evaluations:
    """What a record that was made elsewhere has; what has a reach was measured on the same targets."""
    kind = FILE if record.reach is None else SHORTER_FILE
    return {(each.context, each.rope): each for each in record.lengths} if file == kind else {}


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
        if content.get("version") != VERSION:
            raise SettingError(f"expected version {VERSION}, got {shortened(content.get('version'))}")
        lengths = as_mapping(content.get("lengths"), "lengths")
        evaluations = {_key(key): TextEvaluation.from_dict(as_mapping(each, key)) for key, each in lengths.items()}
    except ValueError as error:
        raise SettingError(f"{path} is damaged ({error}): delete it to measure again.") from error
    return evaluations if content.get("loss") == own.loss else {}


def _key(text: str) -> Condition:
    context, _, rope = text.partition(" ")
    return int(context), rope


def _load(cell: Cell) -> LanguageModel:
    import torch

    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    torch.set_num_threads(cell.config.train.threads)  # as in training, so that numbers do not depend on the machine
    return LanguageModel.load(cell.folder / "model").to(default_device())
