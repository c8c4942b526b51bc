"""Evaluation during and after training: by what the task is measured by, on what it holds out.

Accuracy is per token and per sequence, by size, hops and distance; losses on documents stand beside those of readers
whose predictions are known exactly. Losses on text are in `perplexity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from resolvent.batch import IGNORED, Batch, Nats, Tokens
from resolvent.model import LanguageModel
from resolvent.model.diagnostics import layer_weights
from resolvent.tasks import EvaluatedOn, Markov, Text
from resolvent.tasks.text import require_text
from resolvent.text.batches import perplexity
from resolvent.train.config import RunConfig
from resolvent.train.evaluations import AccuracyEvaluation, DocumentEvaluation, Evaluation, ReaderLoss, Slice
from resolvent.train.perplexity import announced, on_text, token_losses
from resolvent.train.precision import autocast
from resolvent.train.processes import SINGLE, Processes

Advance = Callable[[], None]
_HOPS = 32  # numbers of feedback steps that the spectrum of a finished model tells apart
_QUICK = 8  # evaluations of documents during training take this share of the batches
_BUCKETS = 8
_ONE_BY_ONE = ("hops", "query")
_FIRST = 8  # positions of the first two ranges; each range after them is twice as long as the one before


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
    return accuracy(
        model, batches, precision=settings.precision, processes=processes, micro_batches=settings.accumulate
    )


def _perplexity(
    model: LanguageModel, config: RunConfig, processes: Processes, quick: bool, advance: Advance
) -> Evaluation:
    settings = config.train
    batches = settings.eval_batches if quick else None
    return on_text(model, require_text(config.task), settings.batch, precision=settings.precision, batches=batches,
                   processes=processes, micro_batches=settings.accumulate, advance=advance)  # fmt: skip


def _documents(
    model: LanguageModel, config: RunConfig, processes: Processes, quick: bool, advance: Advance
) -> Evaluation:
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


@torch.no_grad()
def accuracy(
    model: LanguageModel, batches: Iterable[Batch], *, precision: str = "float32", processes: Processes = SINGLE,
    micro_batches: int = 1,
) -> AccuracyEvaluation:  # fmt: skip
    """Means over all targets, and by what the batches are sliced by.

    Sizes, distances and positions come in up to eight ranges of equal width, hops one by one. Each process takes its
    rows; all return the same.
    """
    model.eval()
    sequences, correct = [], []
    keys: dict[str, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for batch in batches:
        marks = _correct(model, batch, precision, processes, micro_batches)
        scored = batch.targets != IGNORED
        sequences.append((marks | ~scored).all(1))
        correct.append(marks[scored])
        for name, numbers in batch.slices.items():
            keys[name].append(numbers[scored])
    model.train()
    tokens = np.concatenate(correct)
    return AccuracyEvaluation(
        accuracy=float(tokens.mean()),
        sequence_accuracy=float(np.concatenate(sequences).mean()),
        tokens=len(tokens),
        slices={name: _slices(np.concatenate(each), tokens, name in _ONE_BY_ONE) for name, each in keys.items()},
    )


@torch.no_grad()
def answers(model: LanguageModel, batch: Batch) -> Tokens:
    """(B, N): the likeliest token at each scored position; `IGNORED` elsewhere."""
    model.eval()
    tokens = torch.from_numpy(batch.tokens).to(model.embedding.weight.device)
    guesses: Tokens = model(tokens).argmax(-1).cpu().numpy()
    return np.where(batch.targets == IGNORED, IGNORED, guesses)


def _correct(
    model: LanguageModel, batch: Batch, precision: str, processes: Processes, micro_batches: int
) -> npt.NDArray[np.bool_]:
    """(B, N): whether the target at each scored position is the likeliest token."""
    device = model.embedding.weight.device
    tokens, targets = (torch.from_numpy(t).to(device) for t in (batch.tokens, batch.targets))
    scored = targets != IGNORED
    marks = torch.zeros_like(targets)  # each process marks its rows, and the sum has all of them
    for rows in processes.slices(len(tokens), micro_batches):
        with autocast(device, precision):
            guesses = model.logits(model.hidden(tokens[rows])[scored[rows]]).argmax(-1)
        marks[rows][scored[rows]] = (guesses == targets[rows][scored[rows]]).long()
    correct: npt.NDArray[np.bool_] = processes.all_reduce(marks).bool().cpu().numpy()
    return correct


def _slices(keys: npt.NDArray[np.int64], correct: npt.NDArray[np.bool_], one_by_one: bool) -> tuple[Slice, ...]:
    low, high = int(keys.min()), int(keys.max())
    edges = np.arange(low, high + 2) if one_by_one else np.unique(np.linspace(low, high + 1, _BUCKETS + 1).astype(int))
    slices = []
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (keys >= first) & (keys < after)
        if inside.any():
            slices.append(Slice(first, after - 1, int(inside.sum()), float(correct[inside].mean())))
    return tuple(slices)


@torch.no_grad()
def on_documents(
    model: LanguageModel, batches: Iterable[Batch], floor: str, *, precision: str = "float32",
    processes: Processes = SINGLE, micro_batches: int = 1, hops: int = 0,
) -> DocumentEvaluation:  # fmt: skip
    """Means over all targets, and over ranges of positions: 0 … 7, 8 … 15, 16 … 31 and so on.

    `floor` is the reader that the standard error of the excess is about. With `hops`, the spectrum of the last layer
    tells so many numbers of feedback steps apart. Each process takes its rows; all return the same.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, npt.NDArray[np.float64]] = {}  # by reader, and of the model by an empty name: nats by position
    counted: npt.NDArray[np.int64] | None = None
    excesses: list[npt.NDArray[np.float64]] = []
    spectrum: tuple[float, ...] = ()
    for batch in batches:
        own = _losses(model, batch, precision, processes, micro_batches)
        scored = batch.targets != IGNORED
        counted = scored.sum(0) + (0 if counted is None else counted)
        for name, nats in {"": own, **batch.readers}.items():
            sums[name] = sums.get(name, 0) + np.where(scored, nats, 0).sum(0)
        excess = np.where(scored, own - batch.readers[floor], 0).sum(1)
        excesses.append(excess / np.maximum(scored.sum(1), 1))
        if hops and not spectrum:
            spectrum = _hop_spectrum(model, batch, hops)
    model.train(was_training)
    if counted is None or not counted.any():
        raise ValueError("expected at least one target to predict, got none.")
    tokens, documents = int(counted.sum()), np.concatenate(excesses)
    loss = float(sums[""].sum() / tokens)
    return DocumentEvaluation(
        loss=loss,
        perplexity=perplexity(loss),
        tokens=tokens,
        documents=len(documents),
        floor=floor,
        excess_error=float(documents.std(ddof=1) / len(documents) ** 0.5) if len(documents) > 1 else 0.0,
        by_position=tuple(_by_position(sums[""], counted)),
        readers={
            name: ReaderLoss(float(nats.sum() / tokens), tuple(_by_position(nats, counted)))
            for name, nats in sums.items()
            if name
        },
        hop_spectrum=spectrum,
    )


def _hop_spectrum(model: LanguageModel, batch: Batch, hops: int) -> tuple[float, ...]:
    tokens = torch.from_numpy(np.ascontiguousarray(batch.tokens)).to(model.embedding.weight.device)
    spectra = torch.cat([weights.hop_spectrum(hops).mean(0) for weights in layer_weights(model, tokens)[-1]])
    return tuple(spectra.double().mean(0).tolist())


def _losses(model: LanguageModel, batch: Batch, precision: str, processes: Processes, micro_batches: int) -> Nats:
    """(B, N), zero where the target is ignored."""
    device = model.embedding.weight.device
    tokens, targets = (torch.from_numpy(np.ascontiguousarray(t)).to(device) for t in (batch.tokens, batch.targets))
    losses = torch.zeros(targets.shape, dtype=torch.float64, device=device)  # each process fills in its rows
    for rows in processes.slices(len(tokens), micro_batches):
        with autocast(device, precision):
            losses[rows] = token_losses(model, model.hidden(tokens[rows]), targets[rows]).double()
    nats: Nats = processes.all_reduce(losses).cpu().numpy()
    return nats


def _by_position(nats: npt.NDArray[np.float64], counted: npt.NDArray[np.int64]) -> Iterator[Slice]:
    edges = [0, _FIRST]
    while edges[-1] < len(counted):
        edges.append(2 * edges[-1])
    edges[-1] = len(counted)
    for first, after in pairwise(edges):
        if count := int(counted[first:after].sum()):
            yield Slice(first, after - 1, count, float(nats[first:after].sum() / count))
