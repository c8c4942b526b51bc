"""Several processes that train one model, started by torchrun: each takes its share of every batch.

replicate  All weights are on every process. torch's DistributedDataParallel sums gradients over processes in buckets,
           while the backward pass computes the next, and the optimizer reads them in those buckets: there is no copy.
shard      Each process holds a shard of every weight, of its gradient and of its moments, and a block's weights are
           gathered while it runs (torch's FSDP2).
hybrid     Weights are sharded within groups of processes, such as the GPUs of one machine, and replicated between
           groups: weights are gathered within a group, and only the shards of gradients are summed between groups.

All three are one number, `shards`: the processes that hold one copy of the weights between them.

The process group has to end before Python does: its threads free tensors, and one that does so while the interpreter
finalizes aborts the process. `destroy_process_group` drops one reference. The group ends, and its threads are joined,
when nothing else holds it: no distributed model, no mesh, and no function of torch (see the import below).
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep today's as a default argument, forever
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from resolvent.errors import SettingError
from resolvent.model import LanguageModel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.futures import Future


@dataclass(frozen=True)
class Processes:
    """One process among all. Losses and gradients are sums over processes, each weighed by its share of targets."""

    rank: int
    count: int
    device: torch.device
    shards: int = 1
    meshes: list[DeviceMesh] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    @contextmanager
    def init(cls, parallel: str = "replicate", shard_group: int | None = None) -> Iterator[Processes]:
        """Initialize the process group if torchrun started this process, or use the one that exists.

        At the end nothing of this run holds the group: one made here ends, with its threads; one made by a caller
        ends when the caller destroys it.
        """
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), process_rank()
        device = default_device(int(os.environ.get("LOCAL_RANK", "0")))
        initialized = dist.is_available() and dist.is_initialized()
        if initialized:
            rank, count = dist.get_rank(), dist.get_world_size()
        shards = shards_of(parallel, shard_group, count)
        if count > 1 and device.type == "cuda":
            torch.cuda.set_device(device)
        if count > 1 and not initialized:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        processes = cls(rank, count, device, shards)
        try:
            yield processes
        except BaseException as error:
            if count > 1:
                traceback.clear_frames(error.__traceback__)  # the model is in them
            raise
        finally:
            if count > 1:
                processes._release()
                if not initialized:
                    dist.destroy_process_group()
                    gc.collect()

    def _release(self) -> None:
        """Let go of the group: meshes, which torch's caches keep, and then models, which are in reference cycles."""
        for mesh in self.meshes:
            getattr(mesh, "_pg_registry", {}).clear()
        gc.collect()

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        return self.shards > 1

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

    def distribute(self, model: LanguageModel) -> DistributedModel:
        """Replicate or shard its weights, in place."""
        replica = None
        if self.sharded:
            self._shard(model)
        elif self.count > 1:
            replica = DistributedDataParallel(_Loss(model), gradient_as_bucket_view=True)
            replica.register_comm_hook(None, lambda _, bucket: _start_sum(bucket.buffer()))
        return DistributedModel(model, self, replica)

    def _shard(self, model: LanguageModel) -> None:
        """Leave its shard of the weights on each process.

        Blocks are gathered one by one; the root has the embedding, which the head reads, too: it stays gathered from
        the beginning of a forward pass to the end of the backward pass, or to `reshard`.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        replicas = self.count // self.shards
        shape = (self.count,) if replicas == 1 else (replicas, self.shards)
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        self.meshes.append(mesh)
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
            _fsdp(model).reshard()

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


@dataclass(frozen=True, eq=False)
class DistributedModel:
    """A model that all processes train: gradients are summed over them during the backward pass of its loss."""

    model: LanguageModel
    processes: Processes
    replica: DistributedDataParallel | None = None

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = (self.replica or self.model.loss)(tokens, targets)
        return loss

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Around the forward and backward pass of a micro-batch: replicas wait for the last before they sum.

        Shards are summed in each pass: gradients of all weights together, which would have to be kept until the last
        one, may not fit where weights do not.
        """
        if self.replica is not None and not last:
            with self.replica.no_sync():
                yield
            return
        if 1 < self.processes.shards < self.processes.count:
            _fsdp(self.model).set_requires_all_reduce(last)
        yield

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradient to at most this norm, over all weights wherever they are; the norm before."""
        parameters = list(self.model.parameters())
        norm = _full_tensor(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def zero_gradients(self) -> None:
        """Replicas keep gradients, which are the buckets that messages are sent from; others drop them."""
        self.model.zero_grad(set_to_none=self.replica is None)


class _Loss(nn.Module):
    """The loss as a forward pass, which DistributedDataParallel needs to see."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(tokens, targets)


def default_device(local: int = 0) -> torch.device:
    """The GPU with this number, or the CPU if there are none."""
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def process_rank() -> int:
    """The number of this process among those that torchrun started; 0 if it did not."""
    return int(os.environ.get("RANK", "0"))


def shards_of(parallel: str, shard_group: int | None, count: int) -> int:
    """Processes that hold one copy of the weights between them; in a hybrid, those of a machine by default."""
    if parallel == "replicate" or count == 1:
        return 1
    if parallel == "shard":
        return count
    shards = shard_group or int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if count % shards:
        raise SettingError(
            f"expected train.shard_group to divide the {count} processes, got groups of {shards}"
            f"{'' if shard_group else ', the processes on this machine'}."
        )
    return shards


def _start_sum(gradients: Tensor) -> Future[Tensor]:
    """Sum over processes, not the mean that torch would take: each process has its weight in the loss."""
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None  # this process is in the group
    total: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return total


def _fsdp(model: LanguageModel) -> FSDPModule:
    """The model as what sharding has made of it."""
    return model  # type: ignore[return-value]


def _full_tensor(value: Tensor) -> Tensor:
    """A sharded tensor, or a partial sum, gathered on each process."""
    gather = getattr(value, "full_tensor", None)  # of a DTensor, whose import takes a second
    return value if gather is None else gather()
