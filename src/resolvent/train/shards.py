"""A run in the middle, as a folder: every process writes its part, and any number of processes can read it.

    checkpoints/latest          the name of the one to go on from
    checkpoints/step_20/        state.json, and a safetensors file from each process with the places of its parts
    checkpoints/step_10/        the one before
    checkpoints/step_30.tmp/    being written, or left by a kill

torch.distributed.checkpoint moves the tensors, with its storage for safetensors: its usual one has pickles in it, which
can run code. That storage keeps no list of what belongs together, and would leave zeros where a file is missing; so all
that is written is looked at before it gets its name, and again before it is read.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor

from resolvent.files import room_for, settle, write_text
from resolvent.model import LanguageModel
from resolvent.train.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

FORMAT, VERSION = "resolvent-shards", 1
LATEST, STATE = "latest", "state.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_KEPT = 2
_ADVICE = f"Write the name of the checkpoint before it into '{LATEST}', or delete all of them to begin the run again."


def require() -> None:
    """What this needs of torch, or a refusal."""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"parallel=shard needs a torch that writes checkpoints of many processes as safetensors: "
            f"pip install -U torch (this is {torch.__version__}), or use parallel=replicate."
        ) from error


def save(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, about: dict[str, Any], processes: Processes
) -> None:
    """A kill at any moment leaves the one before or this one."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts

    path = folder / f"step_{about['state']['step']}"
    beside = path.with_name(f"{path.name}.tmp")
    if processes.first:
        for left in folder.glob("*.tmp"):
            shutil.rmtree(left)
        beside.mkdir(parents=True)
    processes.wait()
    tensors = _tensors(model, optimizer)
    with room_for(beside), _alone_on_purpose(), _first_failure():
        save_parts(tensors, storage_writer=HuggingFaceStorageWriter(str(beside), save_distributed=True),
                   no_dist=processes.count == 1)  # fmt: skip
    processes.wait()
    if not processes.first:
        return
    if wrong := _unlike(_parts(beside), tensors):
        raise OSError(
            f"{beside} does not have all that was written: {_some(wrong)}. "
            "Expected a folder that all processes share, on all machines."
        )
    write_text(beside / STATE, json.dumps({"format": FORMAT, "version": VERSION, **about}))
    settle(beside)
    _remove(path)  # left by a run that was killed before it could be the latest
    beside.rename(path)
    settle(folder)
    write_text(folder / LATEST, path.name + "\n")
    others = [other for other in folder.glob("step_*[0-9]") if other != path]
    for old in sorted(others, key=_number)[: -_KEPT + 1]:
        _remove(old)


def latest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint to go on from, and its state; None if there is none."""
    pointer = folder / LATEST
    if not pointer.exists():
        return None
    name = pointer.read_text().strip()
    path = folder / name
    if not re.fullmatch(r"step_\d+", name) or not path.is_dir():
        raise ValueError(f"{pointer} names '{name}', and there is no such checkpoint. {_ADVICE}")
    try:
        about = json.loads((path / STATE).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / STATE} is damaged ({error}). {_ADVICE}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(f"{path} is no checkpoint of this release: expected {FORMAT} {VERSION}. {_ADVICE}")
    return path, about


def read(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, processes: Processes) -> None:
    """Put model and optimizer back where they were: each process reads what it has of them."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_parts

    found = _parts(path)
    for name, parameter in model.named_parameters():
        if f"optimizer/step/{name}" in found:
            moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
            optimizer.state[parameter].update(moments, step=torch.zeros(()))
    tensors = _tensors(model, optimizer)
    if wrong := _unlike(found, tensors):
        raise ValueError(f"{path} is incomplete, or of another model: {_some(wrong)} do not fit. {_ADVICE}")
    with _alone_on_purpose(), _first_failure():
        load_parts(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=processes.count == 1)


@contextmanager
def _first_failure() -> Iterator[None]:
    """What went wrong in the first process where anything did, instead of torch's collection, which is no Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        raise cause from error


def _tensors(model: LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that a run goes on from, under the names that a checkpoint in one file has; parts where there are parts."""
    tensors: dict[str, Tensor] = {f"model/{name}": t.detach() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{moment}/{name}"] = value
    return tensors


def _parts(path: Path) -> dict[str, TensorStorageMetadata]:
    """What the files in a folder have of each tensor."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        return HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata  # type: ignore[return-value]
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"a file in {path} is damaged ({error}). {_ADVICE}") from error


def _unlike(found: dict[str, TensorStorageMetadata], own: dict[str, Tensor]) -> list[str]:
    """Tensors that are not there, not expected, of another shape, or there in part only; parts never overlap."""
    return sorted(
        name
        for name in found.keys() | own.keys()
        if name not in found
        or name not in own
        or found[name].size != own[name].shape
        or sum(math.prod(part.sizes) for part in found[name].chunks) != own[name].numel()
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _remove(path: Path) -> None:
    """Under another name first: what has the name of a checkpoint is whole."""
    if path.exists():
        shutil.rmtree(path.rename(path.with_name(f"{path.name}.old.tmp")))


@contextmanager
def _alone_on_purpose() -> Iterator[None]:
    """Torch warns a single process, which means it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
