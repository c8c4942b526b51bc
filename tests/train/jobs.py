"""For torchrun: runs that follow one another in the same processes, since starting these takes longest.

`python -m torch.distributed.run … tests/train/jobs.py JOBS`: a file with a list of arguments of `run`. Each process
writes the names of its threads after the group is destroyed to JOBS.threads and its number.
"""

import json
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from resolvent.model import LanguageModel
from resolvent.train import RunConfig, loop, processes, train


class StoppedError(Exception):
    pass


def threads() -> str:
    """The names of this process's threads, one a line; those of Gloo have it in theirs."""
    return "\n".join(sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))


def run(
    config: dict[str, Any], folder: str, stop: int | None = None, faults: dict[str, Any] | None = None,
    many: int = 1 << 24,
) -> None:  # fmt: skip
    """Train, up to a step if one is given.

    `faults` has factors for the loss by step, on all processes or the last alone; logits beyond `many` are in parts.
    Of replicas, the number of gradients summed in each step is written beside the folder.
    """
    take, loss, step = loop.take_step, LanguageModel.loss, 0
    start_sum, sent = processes._start_sum, defaultdict[int, int](int)
    folder = folder.replace("RANK", str(dist.get_rank() if dist.is_initialized() else 0))
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal step
        step = arguments[4]
        if step == stop:
            raise StoppedError
        return take(*arguments, **named)

    def spoilt(self: LanguageModel, *arguments: Any, **named: Any) -> torch.Tensor:
        factor, where = (faults or {}).get(str(step), (1.0, "all"))
        return loss(self, *arguments, **named) * (float(factor) if last or where == "all" else 1.0)

    def noted(gradients: torch.Tensor) -> Any:
        sent[step] += gradients.numel()
        return start_sum(gradients)

    with (
        patch.object(loop, "take_step", counted),
        patch.object(processes, "_start_sum", noted),
        patch.object(LanguageModel, "loss", spoilt),
        patch("resolvent.model.language_model.MOST_LOGITS", many),
        suppress(StoppedError),
    ):
        train(RunConfig.from_dict(config), Path(folder))
    if sent:
        Path(f"{folder}.sent{dist.get_rank()}").write_text(json.dumps(list(sent.values())))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text()):
        try:
            run(**job)
        except ValueError as error:
            Path(f"{job['folder']}.error{dist.get_rank()}").write_text(str(error))
    rank = dist.get_rank()
    before = threads()
    dist.destroy_process_group()
    Path(f"{sys.argv[1]}.threads{rank}").write_text(f"{before}\n---\n{threads()}")
