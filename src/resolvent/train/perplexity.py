"""How well a model predicts text it was not trained on: nats and bits, by place in the context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from resolvent.model import LanguageModel
from resolvent.tasks import IGNORED, Batch
from resolvent.text.batches import perplexity
from resolvent.train.processes import ALONE, Processes
from resolvent.train.text import HELD_OUT, Text

_ROWS = 4096  # tokens whose logits exist at once
_BUCKETS = 16


def on_text(
    model: LanguageModel, text: Text, batch: int, *, split: str = HELD_OUT, stride: int | None = None,
    precision: str = "float32", batches: int | None = None, processes: Processes = ALONE, parts: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Loss, perplexity and bits per byte on a split, or on its first batches alone.

    Windows do not overlap unless there is a stride; then only the last `stride` targets of each count. Bits per byte
    divide by the bytes of the text that the targets stand for: all of the split's, or the same share of them. `advance`
    is called after every batch.
    """
    windows = _told(islice(text.windows(batch, split, stride), batches), advance)
    found = measure(model, windows, precision, processes, parts)
    counts = text.opened.counts[split]
    size = counts.bytes * found["tokens"] / max(counts.tokens - 1, 1)
    return {
        "split": split,
        "stride": text.context if stride is None else stride,
        "context": text.context,
        **found,
        "bits_per_byte": found["loss"] * found["tokens"] / math.log(2) / size,
    }


@torch.no_grad()
def measure(
    model: LanguageModel, batches: Iterable[Batch], precision: str = "float32", processes: Processes = ALONE,
    parts: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Mean loss over all targets, and over those in each of up to 16 ranges of places in the context.

    `by_place` lists [from, to, targets, mean loss]. Each process takes its rows, in so many parts; all find the same.
    """
    was_training = model.training
    model.eval()
    device = model.embedding.weight.device
    sums: np.ndarray[Any, np.dtype[np.float64]] | None = None
    for batch in (_filled(batch, processes.count) for batch in batches):
        for rows in processes.slices(len(batch.tokens), parts):
            tokens, targets = (torch.from_numpy(t[rows]).to(device) for t in (batch.tokens, batch.targets))
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                losses = losses_of(model, model.hidden(tokens), targets)
            counted = (targets != IGNORED).double().sum(0)
            new = torch.stack([losses.double().sum(0), counted]).cpu().numpy()
            sums = new if sums is None else sums + new
    model.train(was_training)
    if sums is not None and processes.count > 1:
        sums = processes.summed(torch.from_numpy(sums).to(device)).cpu().numpy()
    if sums is None or not sums[1].sum():
        raise ValueError("expected at least one target to predict, got none.")
    loss, count = sums.sum(1).tolist()
    edges = np.unique(np.linspace(0, sums.shape[1], _BUCKETS + 1).astype(int)).tolist()
    places = [
        [first, after - 1, int(sums[1, first:after].sum()), float(sums[0, first:after].sum() / number)]
        for first, after in pairwise(edges)
        if (number := sums[1, first:after].sum())
    ]
    return {"loss": loss / count, "perplexity": perplexity(loss / count), "tokens": int(count), "by_place": places}


def _told(batches: Iterable[Batch], advance: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance()


def _filled(batch: Batch, rows: int) -> Batch:
    """At least so many sequences: no process goes without, and those that are added have no targets."""
    missing = rows - len(batch.tokens)
    if missing <= 0:
        return batch
    tokens = np.concatenate([batch.tokens, np.repeat(batch.tokens[:1], missing, 0)])
    targets = np.concatenate([batch.targets, np.full_like(tokens[:missing], IGNORED)])
    return Batch(tokens, targets)


def losses_of(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Of each target (B, N), zero where it is ignored; logits exist for a few thousand tokens at a time."""
    parts = zip(hidden.flatten(0, 1).split(_ROWS), targets.flatten().split(_ROWS), strict=True)
    found = [cross_entropy(model.logits(h).float(), t, reduction="none", ignore_index=IGNORED) for h, t in parts]
    return torch.cat(found).view(targets.shape)
