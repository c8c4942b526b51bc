"""Evaluation during and after training: by what the task is measured by, on what it holds out."""

from __future__ import annotations

from collections.abc import Callable

from resolvent.model import LanguageModel
from resolvent.tasks import EvaluatedOn, Markov, Text
from resolvent.tasks.text import require_text
from resolvent.train.accuracy import accuracy
from resolvent.train.config import RunConfig
from resolvent.train.documents import on_documents
from resolvent.train.evaluations import Evaluation
from resolvent.train.perplexity import announced, on_text
from resolvent.train.processes import Processes

Advance = Callable[[], None]
_HOPS = 32  # numbers of feedback steps that the spectrum of a finished model tells apart
_QUICK = 8  # evaluations of documents during training take this share of the batches


def evaluate(
    model: LanguageModel, config: RunConfig, processes: Processes, *, quick: bool = False,
    on_batch: Callable[[int, int], None] = lambda *_: None,
) -> Evaluation:  # fmt: skip
    """On what was not trained on; if `quick`, on the first `eval_batches` of a text, or on fewer documents.

    `on_batch` is called with the batches done, and how many there are.
    """
    done, total = 0, _batches(config, quick)

    def advance() -> None:
        nonlocal done
        done += 1
        on_batch(done, total)

    evaluation = EVALUATORS[config.task.evaluated_on](model, config, processes, quick, advance)
    processes.reshard(model)
    return evaluation


def _batches(config: RunConfig, quick: bool) -> int:
    settings, task = config.train, config.task
    if quick and isinstance(task, Markov):
        return max(settings.eval_batches // _QUICK, 1)
    if quick or not isinstance(task, Text):
        return settings.eval_batches
    return len(task.windows(settings.batch))


def _accuracy(model: LanguageModel, config: RunConfig, processes: Processes, _: bool, advance: Advance) -> Evaluation:
    """Sequences are made on the fly, so that any number of them is a sample."""
    settings = config.train
    batches = announced(config.task.held_out(settings.seed, settings.batch, settings.eval_batches), advance)
    return accuracy(model, batches, precision=settings.precision, processes=processes,
                    micro_batches=settings.accumulate)  # fmt: skip


def _perplexity(
    model: LanguageModel, config: RunConfig, processes: Processes, quick: bool, advance: Advance
) -> Evaluation:  # fmt: skip
    settings = config.train
    batches = settings.eval_batches if quick else None
    return on_text(model, require_text(config.task), settings.batch, precision=settings.precision, batches=batches,
                   processes=processes, micro_batches=settings.accumulate, advance=advance)  # fmt: skip


def _documents(
    model: LanguageModel, config: RunConfig, processes: Processes, quick: bool, advance: Advance
) -> Evaluation:  # fmt: skip
    settings, task = config.train, config.task
    assert isinstance(task, Markov), task.name
    batches = announced(task.held_out(settings.seed, settings.batch, _batches(config, quick)), advance)
    return on_documents(model, batches, task.floor, precision=settings.precision, processes=processes,
                        micro_batches=settings.accumulate,
                        hops=0 if quick or processes.count > 1 else _HOPS)  # fmt: skip


EVALUATORS: dict[EvaluatedOn, Callable[[LanguageModel, RunConfig, Processes, bool, Advance], Evaluation]] = {
    "answers": _accuracy,
    "text": _perplexity,
    "documents": _documents,
}
