"""Several processes that train one model, started by torchrun: each takes its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """One process among all. Losses and gradients are sums over processes, each weighed by its share of targets."""

    rank: int
    count: int
    device: torch.device

    @classmethod
    @contextmanager
    def joined(cls) -> Iterator[Processes]:
        """Join the others if torchrun started this process; alone otherwise."""
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
        if count == 1:
            yield cls(0, 1, device)
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield cls(rank, count, device)
        finally:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """Its rows of a batch."""
        if batch < self.count:
            raise ValueError(
                f"expected at least one sequence for each of the {self.count} processes, got batch={batch}."
            )
        return slice(self.rank * batch // self.count, (self.rank + 1) * batch // self.count)

    def summed(self, value: Tensor) -> Tensor:
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up what all processes found, in one message."""
        if self.count == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            g.copy_(part.view_as(g))
