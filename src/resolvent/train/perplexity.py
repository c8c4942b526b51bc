"""How well a model predicts held-out text: nats and bits, by position in the context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from resolvent.batch import IGNORED, Batch
from resolvent.model import LanguageModel
from resolvent.tasks.text import HELD_OUT, Text
from resolvent.text.batches import perplexity
from resolvent.train.evaluations import Slice, TextEvaluation
from resolvent.train.precision import autocast
from resolvent.train.processes import SINGLE, Processes

_ROWS = 4096  # tokens whose logits exist at once
_BUCKETS = 16


@dataclass(frozen=True)
class MeanLoss:
    """Over all targets, and over those in ranges of positions in the context."""

    loss: float
    tokens: int
    by_position: tuple[Slice, ...]


def on_text(
    model: LanguageModel, text: Text, batch: int, *, split: str = HELD_OUT, stride: int | None = None,
    precision: str = "float32", batches: int | None = None, processes: Processes = SINGLE, micro_batches: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> TextEvaluation:  # fmt: skip
    """Loss, perplexity and bits per byte on a split, or on its first batches alone.

    Windows do not overlap unless there is a stride; then only the last `stride` targets of each count. Bits per byte
    divide by the bytes of the text that the targets stand for: all of the split's, or the same share of them. `advance`
    is called after every batch.
    """
    windows = announced(islice(text.windows(batch, split, stride), batches), advance)
    mean = mean_loss(model, windows, precision=precision, processes=processes, micro_batches=micro_batches)
    return _evaluation(mean, text, text.context, split, text.context if stride is None else stride)


def on_last_targets(
    model: LanguageModel, text: Text, context: int, batch: int, scored: int, *, precision: str = "float32"
) -> TextEvaluation:
    """On held-out text, given `context` tokens of it: the targets are the same for every context.

    The `stride` of the evaluation is that of the windows, of which the last `scored` targets count.
    """
    windows = text.last_targets(context, batch, scored)
    return _evaluation(mean_loss(model, windows, precision=precision), text, context, HELD_OUT, windows.step)


def _evaluation(mean: MeanLoss, text: Text, context: int, split: str, stride: int) -> TextEvaluation:
    counts = text.opened.counts[split]
    size = counts.bytes * mean.tokens / max(counts.tokens - 1, 1)
    return TextEvaluation(
        split=split,
        stride=stride,
        context=context,
        loss=mean.loss,
        perplexity=perplexity(mean.loss),
        tokens=mean.tokens,
        by_position=mean.by_position,
        bits_per_byte=mean.loss * mean.tokens / math.log(2) / size,
    )


@torch.no_grad()
def mean_loss(
    model: LanguageModel, batches: Iterable[Batch], *, precision: str = "float32", processes: Processes = SINGLE,
    micro_batches: int = 1,
) -> MeanLoss:  # fmt: skip
    """In up to 16 ranges of positions. Each process takes its rows; all return the same."""
    was_training = model.training
    model.eval()
    device = model.embedding.weight.device
    sums: npt.NDArray[np.float64] | None = None  # (2, N): losses and counts by position
    for batch in (_padded(batch, processes.count) for batch in batches):
        for rows in processes.slices(len(batch.tokens), micro_batches):
            tokens, targets = (torch.from_numpy(t[rows]).to(device) for t in (batch.tokens, batch.targets))
            with autocast(device, precision):
                losses = token_losses(model, model.hidden(tokens), targets)
            counted = (targets != IGNORED).double().sum(0)
            new = torch.stack([losses.double().sum(0), counted]).cpu().numpy()
            sums = new if sums is None else sums + new
    model.train(was_training)
    if sums is not None and processes.count > 1:
        sums = processes.all_reduce(torch.from_numpy(sums).to(device)).cpu().numpy()
    if sums is None or not sums[1].sum():
        raise ValueError("expected at least one target to predict, got none.")
    loss, count = sums.sum(1).tolist()
    return MeanLoss(loss / count, int(count), tuple(_by_position(sums)))


def _by_position(sums: npt.NDArray[np.float64]) -> Iterator[Slice]:
    edges = np.unique(np.linspace(0, sums.shape[1], _BUCKETS + 1).astype(int)).tolist()
    for first, after in pairwise(edges):
        loss, count = sums[:, first:after].sum(1).tolist()
        if count:
            yield Slice(first, after - 1, int(count), loss / count)


def announced(batches: Iterable[Batch], advance: Callable[[], None]) -> Iterator[Batch]:
    """The batches; `advance` is called when one has been used."""
    for batch in batches:
        yield batch
        advance()


def _padded(batch: Batch, rows: int) -> Batch:
    """At least so many sequences, so that every process has one; those added have no targets."""
    missing = rows - len(batch.tokens)
    if missing <= 0:
        return batch
    tokens = np.concatenate([batch.tokens, np.repeat(batch.tokens[:1], missing, 0)])
    targets = np.concatenate([batch.targets, np.full_like(tokens[:missing], IGNORED)])
    return Batch(tokens, targets)


def token_losses(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Of each target (B, N), zero where it is ignored; logits exist for a few thousand tokens at a time."""
    pieces = zip(hidden.flatten(0, 1).split(_ROWS), targets.flatten().split(_ROWS), strict=True)
    losses = [cross_entropy(model.logits(h).float(), t, reduction="none", ignore_index=IGNORED) for h, t in pieces]
    return torch.cat(losses).view(targets.shape)
