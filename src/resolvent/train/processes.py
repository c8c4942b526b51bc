"""Several processes that train one model, started by torchrun: each takes its share of every batch.

Weights are whole on every process ("replicate"), or each process has a part of every weight, of its gradient and its
moments, and a block's weights are put together while it runs ("shard", torch's FSDP2).

When weights are whole, gradients are added up in one message after the last part of a step. The sum is that of torch's
DistributedDataParallel, without a wrapper around the model, whose loss is not its `forward`. Waiting for the message is
what it costs; "shard" sends while it computes, and is meant for machines where that matters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from resolvent.model import LanguageModel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@dataclass(frozen=True)
class Processes:
    """One process among all. Losses and gradients are sums over processes, each weighed by its share of targets."""

    rank: int
    count: int
    device: torch.device
    sharded: bool = False

    @classmethod
    @contextmanager
    def joined(cls, parallel: str = "replicate") -> Iterator[Processes]:
        """Join the others if torchrun started this process; alone otherwise. A group there already is made use of."""
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), rank_here()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = device_here(local)
        joined = dist.is_available() and dist.is_initialized()
        if joined:
            rank, count = dist.get_rank(), dist.get_world_size()
        if count > 1 and device.type == "cuda":
            torch.cuda.set_device(device)
        if count > 1 and not joined:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        try:
            yield cls(rank, count, device, parallel == "shard" and count > 1)
        finally:
            if count > 1 and not joined:
                dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def slices(self, rows: int, parts: int = 1) -> list[slice]:
        """Its rows of a batch, in up to so many parts: as many on every process, since all gather weights together."""
        if rows < self.count:
            raise ValueError(
                f"expected at least one sequence for each of the {self.count} processes, got batch={rows}."
            )
        begin, end = self.rank * rows // self.count, (self.rank + 1) * rows // self.count
        parts = min(parts, rows // self.count)
        edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        return [slice(*pair) for pair in pairwise(edges)]

    def summed(self, value: Tensor) -> Tensor:
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()

    def agree(self, step: int) -> None:
        """All have found the same step to go on from; folders that are not shared, or not yet in step, show here."""
        if self.count == 1:
            return
        ends = torch.tensor([step, -step], device=self.device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        most, least = int(ends[0]), -int(ends[1])
        if most != least:
            raise ValueError(
                f"some processes found a checkpoint of step {most}, others of step {least} (0 is none): "
                "expected a folder that all of them share. If they do, start them again."
            )

    def spread(self, model: LanguageModel) -> None:
        """Leave its part of the weights on each process, if they are to be sharded.

        Blocks are gathered one by one; the root has the embedding, which the head reads, too: it stays whole from the
        beginning of a forward pass to the end of the backward pass, or to `settle`.
        """
        if not self.sharded:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for method in ("loss", "hidden"):
            register_fsdp_forward_method(model, method)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # sums of gradients, not means: each has its weight in the loss
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)

    def settle(self, model: LanguageModel) -> None:
        """After passes that no backward pass followed: nothing but its part is left on each process."""
        if self.sharded:
            root: FSDPModule = model  # type: ignore[assignment]  # what `spread` made of it
            root.reshard()

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up what all processes found, in one message; sharded gradients have been, on their way back."""
        if self.count == 1 or self.sharded:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            g.copy_(part.view_as(g))

    def clip(self, model: nn.Module, most: float) -> float:
        """Make the gradient's norm, over all weights wherever they are, at most this; what it was before."""
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        norm = _whole(norm)
        nn.utils.clip_grads_with_norm_(model.parameters(), most, norm)
        return float(norm)

    def gathered(self, model: LanguageModel) -> LanguageModel:
        """The model with whole weights on the first process; of use there alone, but all must ask."""
        if not self.sharded:
            return model
        weights = {}
        for name, part in model.state_dict().items():
            weight = _whole(part)
            if self.first:
                weights[name] = weight.cpu()
        whole = LanguageModel.shape_only(model.config)
        if self.first:
            whole.load_state_dict(weights, assign=True)
        return whole


ALONE = Processes(0, 1, torch.device("cpu"))


def device_here(local: int = 0) -> torch.device:
    """The GPU with this number, or the CPU if there are none."""
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def rank_here() -> int:
    """The number of this process among those that torchrun started; 0 if it did not."""
    return int(os.environ.get("RANK", "0"))


def _whole(value: Tensor) -> Tensor:
    """What processes have parts of, or terms of a sum of, put together on each."""
    gather = getattr(value, "full_tensor", None)  # of a DTensor, whose import takes a second
    return value if gather is None else gather()
