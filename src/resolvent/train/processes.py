"""Several processes that train one model, started by torchrun: each takes its share of every batch.

Weights are replicated on every process ("replicate"), or each process holds a shard of every weight, of its gradient
and its moments, and a block's weights are gathered while it runs ("shard", torch's FSDP2).

Replicated gradients are all-reduced in one message after the last micro-batch of a step. The sum is that of torch's
DistributedDataParallel, without a wrapper around the model, whose loss is not its `forward`. The cost is waiting for
that message; "shard" overlaps communication with computation, and is meant for machines where that matters.
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
    def init(cls, parallel: str = "replicate") -> Iterator[Processes]:
        """Initialize the process group if torchrun started this process, or use the one that exists."""
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), process_rank()
        device = default_device(int(os.environ.get("LOCAL_RANK", "0")))
        initialized = dist.is_available() and dist.is_initialized()
        if initialized:
            rank, count = dist.get_rank(), dist.get_world_size()
        if count > 1 and device.type == "cuda":
            torch.cuda.set_device(device)
        if count > 1 and not initialized:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        try:
            yield cls(rank, count, device, parallel == "shard" and count > 1)
        finally:
            if count > 1 and not initialized:
                dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def slices(self, rows: int, micro_batches: int = 1) -> list[slice]:
        """Its rows of a batch, in up to so many micro-batches: as many on every process, since all gather weights."""
        if rows < self.count:
            raise ValueError(
                f"expected at least one sequence for each of the {self.count} processes, got batch={rows}."
            )
        begin, end = self.rank * rows // self.count, (self.rank + 1) * rows // self.count
        number = min(micro_batches, rows // self.count)
        edges = [begin + (end - begin) * index // number for index in range(number + 1)]
        return [slice(*pair) for pair in pairwise(edges)]

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over all processes, written into the tensor."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        if self.count > 1:
            dist.barrier()

    def check_same_step(self, step: int) -> None:
        """All resume from the same step, or an error is raised: their folders may not be shared, or not in step yet."""
        if self.count == 1:
            return
        ends = torch.tensor([step, -step], device=self.device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        most, least = int(ends[0]), -int(ends[1])
        if most != least:
            raise ValueError(
                f"some processes have a checkpoint of step {most}, others of step {least} (0 is none): "
                "expected a folder that all of them share. If they do, start them again."
            )

    def shard_model(self, model: LanguageModel) -> None:
        """Leave its shard of the weights on each process, if they are to be sharded.

        Blocks are gathered one by one; the root has the embedding, which the head reads, too: it stays gathered from
        the beginning of a forward pass to the end of the backward pass, or to `reshard`.
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

    def reshard(self, model: LanguageModel) -> None:
        """Drop what passes without a backward pass have gathered."""
        if self.sharded:
            root: FSDPModule = model  # type: ignore[assignment]  # what `shard_model` made of it
            root.reshard()

    def reduce_gradients(self, model: nn.Module) -> None:
        """Sum gradients over processes in one message; sharded ones have been summed in the backward pass."""
        if self.count == 1 or self.sharded:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for g, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            g.copy_(total.view_as(g))

    def clip_gradients(self, model: nn.Module, max_norm: float) -> float:
        """Scale the gradient to at most this norm, over all weights wherever they are; the norm before."""
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        norm = _full_tensor(norm)
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
        return float(norm)

    def gather_model(self, model: LanguageModel) -> LanguageModel:
        """The model with full weights on the first process, and without weights on others; all must call this."""
        if not self.sharded:
            return model
        weights = {}
        for name, shard in model.state_dict().items():
            weight = _full_tensor(shard)
            if self.first:
                weights[name] = weight.cpu()
        gathered = LanguageModel.shape_only(model.config)
        if self.first:
            gathered.load_state_dict(weights, assign=True)
        return gathered


SINGLE = Processes(0, 1, torch.device("cpu"))


def default_device(local: int = 0) -> torch.device:
    """The GPU with this number, or the CPU if there are none."""
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def process_rank() -> int:
    """The number of this process among those that torchrun started; 0 if it did not."""
    return int(os.environ.get("RANK", "0"))


def _full_tensor(value: Tensor) -> Tensor:
    """A sharded tensor, or a partial sum, gathered on each process."""
    gather = getattr(value, "full_tensor", None)  # of a DTensor, whose import takes a second
    return value if gather is None else gather()
