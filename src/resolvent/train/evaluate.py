"""Accuracy on sequences never trained on: per token and per sequence, by size, by hops, by distance."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from resolvent.model import LanguageModel
from resolvent.tasks import IGNORED, Task
from resolvent.train.processes import ALONE, Processes

HELD_OUT = 1 << 40  # added to seeds: no run trains on these streams
_BUCKETS = 8


@torch.no_grad()
def accuracy(
    model: LanguageModel, task: Task, seed: int, batches: int, count: int, precision: str = "float32",
    processes: Processes = ALONE, parts: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Means over held-out batches whose sizes are spread evenly from the least to the largest, and broken down.

    `by_size` and others are lists of [from, to, tokens, share right]: sizes and distances in up to eight ranges of
    equal width, hops one by one. Each process takes its rows, in so many parts; all find the same.
    """
    model.eval()
    device = model.embedding.weight.device
    rights: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    keys: dict[str, list[np.ndarray[Any, Any]]] = defaultdict(list)
    whole = []
    least, most = task.sizes(1)
    for index in range(batches):
        size = least + (most - least) * index // max(batches - 1, 1)
        batch = task.batch(seed + HELD_OUT, index, count, size=size)
        tokens, targets = (torch.from_numpy(t).to(device) for t in (batch.tokens, batch.targets))
        scored = targets != IGNORED
        marks = torch.zeros_like(targets)  # 1 where nothing is wrong, added up over processes
        for rows in processes.slices(count, parts):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                guesses = model.logits(model.hidden(tokens[rows])[scored[rows]]).argmax(-1)
            marks[rows] = 1
            marks[rows][scored[rows]] = (guesses == targets[rows][scored[rows]]).long()
        right = processes.summed(marks).bool()
        whole.append(right.all(1).cpu().numpy())
        found, where = right[scored].cpu().numpy(), scored.cpu().numpy()
        rights["size"].append(found)
        keys["size"].append(np.full(len(found), task.size_of(batch.tokens)))
        for name, numbers in batch.slices.items():
            rights[name].append(found)
            keys[name].append(numbers[where])
    model.train()
    tokens_right = np.concatenate(rights["size"])
    result: dict[str, Any] = {
        "accuracy": float(tokens_right.mean()),
        "sequence_accuracy": float(np.concatenate(whole).mean()),
        "tokens": len(tokens_right),
    }
    for name in rights:
        result[f"by_{name}"] = _broken_down(np.concatenate(keys[name]), np.concatenate(rights[name]), name == "hops")
    return result


def _broken_down(keys: Any, right: Any, each: bool) -> list[list[float]]:
    low, high = int(keys.min()), int(keys.max())
    edges = np.arange(low, high + 2) if each else np.unique(np.linspace(low, high + 1, _BUCKETS + 1).astype(int))
    rows = []
    for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (keys >= first) & (keys < after)
        if inside.any():
            rows.append([first, after - 1, int(inside.sum()), float(right[inside].mean())])
    return rows
