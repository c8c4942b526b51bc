"""Evaluation during and after training: by what the task is measured by, on what it holds out."""

from __future__ import annotations

from collections.abc import Callable

from resolvent.model import LanguageModel
from resolvent.tasks import Measure
from resolvent.tasks.text import require_text
from resolvent.train.accuracy import accuracy
from resolvent.train.config import RunConfig
from resolvent.train.perplexity import on_text
from resolvent.train.processes import Processes
from resolvent.train.record import Evaluation


def evaluate(
    model: LanguageModel, config: RunConfig, processes: Processes, *, quick: bool = False
) -> Evaluation:  # fmt: skip
    """On what was not trained on; if `quick`, on the first `eval_batches` of a text alone."""
    evaluation = EVALUATORS[config.task.measure](model, config, processes, quick)
    processes.reshard(model)
    return evaluation


def _accuracy(model: LanguageModel, config: RunConfig, processes: Processes, _: bool) -> Evaluation:
    """Sequences are made on the fly, so that any number of them is a sample."""
    settings = config.train
    batches = config.task.held_out(settings.seed, settings.batch, settings.eval_batches)
    return accuracy(model, batches, precision=settings.precision, processes=processes,
                    micro_batches=settings.accumulate)  # fmt: skip


def _perplexity(model: LanguageModel, config: RunConfig, processes: Processes, quick: bool) -> Evaluation:
    settings = config.train
    batches = settings.eval_batches if quick else None
    return on_text(model, require_text(config.task), settings.batch, precision=settings.precision, batches=batches,
                   processes=processes, micro_batches=settings.accumulate)  # fmt: skip


EVALUATORS: dict[Measure, Callable[[LanguageModel, RunConfig, Processes, bool], Evaluation]] = {
    "accuracy": _accuracy,
    "perplexity": _perplexity,
}
