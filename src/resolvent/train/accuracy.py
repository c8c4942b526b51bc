"""Accuracy on held-out sequences: per token and per sequence, by size, by hops, by distance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from resolvent.batch import IGNORED, Batch, Tokens
from resolvent.model import LanguageModel
from resolvent.train.evaluations import AccuracyEvaluation, Slice
from resolvent.train.precision import autocast
from resolvent.train.processes import SINGLE, Processes

_BUCKETS = 8
_ONE_BY_ONE = ("hops", "query")


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


def _slices(
    keys: npt.NDArray[np.int64], correct: npt.NDArray[np.bool_], one_by_one: bool
) -> tuple[Slice, ...]:  # fmt: skip
    low, high = int(keys.min()), int(keys.max())
    edges = np.arange(low, high + 2) if one_by_one else np.unique(np.linspace(low, high + 1, _BUCKETS + 1).astype(int))
    slices = []
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (keys >= first) & (keys < after)
        if inside.any():
            slices.append(Slice(first, after - 1, int(inside.sum()), float(correct[inside].mean())))
    return tuple(slices)
