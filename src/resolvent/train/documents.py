"""How well a model predicts documents, beside readers whose predictions are known exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from resolvent.batch import IGNORED, Batch, Nats
from resolvent.model import LanguageModel
from resolvent.model.diagnostics import layer_weights
from resolvent.text.batches import perplexity
from resolvent.train.evaluations import DocumentEvaluation, ReaderLoss, Slice
from resolvent.train.perplexity import token_losses
from resolvent.train.precision import autocast
from resolvent.train.processes import SINGLE, Processes

_FIRST = 8  # positions of the first two ranges; each range after them is twice as long as the one before


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


def _losses(
    model: LanguageModel, batch: Batch, precision: str, processes: Processes, micro_batches: int
) -> Nats:  # fmt: skip
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
