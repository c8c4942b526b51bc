"""Sharded checkpoints: a folder to which every process writes its shard, and that any number of processes can read.

    checkpoints/latest          the name of the one to resume from
    checkpoints/step_20/        a safetensors file from each process with the offsets of its shards, and state.json,
                                which has a digest of each, and one of itself
    checkpoints/step_10/        the one before
    checkpoints/step_30.tmp/    being written, or left by a kill

torch.distributed.checkpoint moves the tensors, with its storage for safetensors: its usual one has pickles in it, which
can run code. That storage keeps no list of what belongs together, and would leave zeros where a file is missing; so all
that is written is verified before it gets its name, and again before it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
import torch
from torch import Tensor

from resolvent.fields import as_mapping, as_text, check_format
from resolvent.files import explain_full_disk, fsync_folder, write_text
from resolvent.model import LanguageModel
from resolvent.tensor_files import sha256_of, some
from resolvent.train.processes import Processes
from resolvent.train.state import SavedRun, TrainState
from resolvent.untrusted import open_file
from resolvent.untrusted import read as read_json

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

FORMAT, VERSION = "resolvent-shards", 2
LATEST, STATE = "latest", "state.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_KEPT = 2
_ADVICE = f"Write the name of the checkpoint before it into '{LATEST}', or delete all of them to begin the run again."


def require() -> None:
    """Raise an error if this torch cannot write such checkpoints."""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"parallel=shard and hybrid need a torch that writes checkpoints of many processes as safetensors: "
            f"pip install -U torch (this is {torch.__version__}), or use parallel=replicate."
        ) from error


def save(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, run: SavedRun, processes: Processes
) -> None:
    """A kill at any moment leaves the one before or this one."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_shards

    path = folder / f"step_{run.state.step}"
    temporary = path.with_name(f"{path.name}.tmp")
    if processes.first:
        for leftover in folder.glob("*.tmp"):
            shutil.rmtree(leftover)
        temporary.mkdir(parents=True)
    processes.barrier()
    tensors = _tensors(model, optimizer)
    with explain_full_disk(temporary), _without_group_warning(), _first_failure():
        save_shards(tensors, storage_writer=HuggingFaceStorageWriter(str(temporary), save_distributed=True),
                    no_dist=processes.count == 1)  # fmt: skip
    processes.barrier()
    digests = _digests(temporary, processes)
    if not processes.first:
        return
    if wrong := _mismatches(_stored(temporary), tensors):
        raise OSError(
            f"{temporary} does not have all that was written: {some(wrong)}. "
            "Expected a folder that all processes share, on all machines."
        )
    content = {"format": FORMAT, "version": VERSION, **run.to_dict(), "files": digests}
    write_text(temporary / STATE, json.dumps(content | {"sha256": _digest_of(content)}))
    fsync_folder(temporary)
    _remove(path)  # left by a run that was killed before it could be the latest
    temporary.rename(path)
    fsync_folder(folder)
    write_text(folder / LATEST, path.name + "\n")
    others = [other for other in folder.glob("step_*[0-9]") if other != path]
    for outdated in sorted(others, key=_number)[: -_KEPT + 1]:
        _remove(outdated)


@dataclass(frozen=True)
class ShardedCheckpoint:
    """A complete checkpoint; `digests` by file."""

    folder: Path
    run: SavedRun
    digests: Mapping[str, str]


def latest(folder: Path) -> ShardedCheckpoint | None:
    """The checkpoint to resume from, or None if there is none."""
    pointer = folder / LATEST
    if not pointer.exists():
        return None
    with open_file(pointer) as file:
        name = file.read(100).decode("utf-8", "replace").strip()
    path = folder / name
    if not re.fullmatch(r"step_\d{1,19}", name) or not path.is_dir():
        raise ValueError(f"{pointer} names '{name}', and there is no such checkpoint. {_ADVICE}")
    try:
        content = as_mapping(read_json(path / STATE), "a checkpoint's state")
        digest = content.pop("sha256", None)
        expected = _digest_of(content)
        check_format(content, FORMAT, VERSION, "a sharded checkpoint")
        if digest != expected:
            raise ValueError("its sha256 is not the one it was written with.")
        digests = {key: as_text(value, key) for key, value in as_mapping(content.pop("files", None), "files").items()}
        run = SavedRun.from_dict(content)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / STATE} is damaged ({error}). {_ADVICE}") from None
    return ShardedCheckpoint(path, run, digests)


def load(
    checkpoint: ShardedCheckpoint, model: LanguageModel, optimizer: torch.optim.Optimizer, processes: Processes
) -> None:
    """Restore model and optimizer: each process reads its shards."""
    folder, digests = checkpoint.folder, checkpoint.digests
    if wrong := sorted(digests.keys() ^ {path.name for path in _files(folder)}):
        raise ValueError(f"{folder} is incomplete: {some(wrong)} do not belong together. {_ADVICE}")
    actual = _digests(folder, processes)
    if wrong := [name for name in digests if digests[name] != actual[name]]:
        raise ValueError(f"a file in {folder} is damaged (the sha256 of {some(wrong)} has changed). {_ADVICE}")
    load_tensors(folder, checkpoint.run, model, optimizer, processes)


def load_tensors(
    folder: Path, run: SavedRun, model: LanguageModel, optimizer: torch.optim.Optimizer, processes: Processes
) -> None:
    """Restore model and optimizer from the files in a folder: full tensors in one of them, or shards."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_shards

    stored = _stored(folder)
    expected = expected_tensors(model, run.state)
    if wrong := _mismatches(stored, expected):
        raise ValueError(f"{folder} is incomplete, or of another model: {some(wrong)} do not fit. {_ADVICE}")
    if any(name.startswith("optimizer/") for name in expected):
        for parameter in model.parameters():
            moments = {moment: torch.zeros_like(parameter) for moment in MOMENTS[:2]}
            optimizer.state[parameter].update(moments, step=torch.zeros(()))
    tensors = _tensors(model, optimizer)
    with _without_group_warning(), _first_failure():
        load_shards(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=processes.count == 1)
    check_steps(tensors, run.state, f"a file in {folder} is damaged", _ADVICE)


def expected_tensors(model: LanguageModel, state: TrainState) -> dict[str, Tensor]:
    """What a checkpoint must hold: weights, and the moments of each, unless all steps so far were skipped."""
    tensors: dict[str, Tensor] = {f"model/{name}": t for name, t in model.state_dict().items()}
    if state.skipped_steps < state.step:
        for name, parameter in model.named_parameters():
            for moment in MOMENTS:
                value = torch.empty((), device="meta") if moment == "step" else parameter
                tensors[f"optimizer/{moment}/{name}"] = value
    return tensors


def check_steps(tensors: Mapping[str, Tensor], state: TrainState, problem: str, advice: str) -> None:
    """Moments have been updated once in each step that was not skipped."""
    taken = min(state.step - state.skipped_steps, 1 << 24)  # beyond which a count in float32 stands still
    for name, value in tensors.items():
        if name.startswith("optimizer/step/") and float(value) != taken:
            raise ValueError(
                f"{problem}: expected {taken} updates of each weight, got {float(value)} in {name}: {advice}"
            )


def _digests(folder: Path, processes: Processes) -> dict[str, str]:
    """The digest of every file, on every process: each reads its share of them."""
    files = _files(folder)
    table = torch.zeros(len(files), 32, dtype=torch.int64)
    for index in range(processes.rank, len(files), processes.count):
        table[index] = torch.tensor(list(bytes.fromhex(sha256_of(files[index]))))
    rows = processes.all_reduce(table.to(processes.device)).tolist()
    return {file.name: bytes(row).hex() for file, row in zip(files, rows, strict=True)}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _digest_of(content: Mapping[str, object]) -> str:
    """The digest of plain values, whatever the order and spaces that JSON has them in."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the error of the first process that failed, instead of torch's collection, which is not an Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        raise cause from error


def _tensors(model: LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that a run resumes from, under the names that a checkpoint in one file has; sharded where weights are."""
    tensors: dict[str, Tensor] = {f"model/{name}": t.detach() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{moment}/{name}"] = value
    return tensors


def _stored(path: Path) -> dict[str, TensorStorageMetadata]:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        return HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata  # type: ignore[return-value]
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"a file in {path} is damaged ({error}). {_ADVICE}") from None


def _mismatches(stored: dict[str, TensorStorageMetadata], own: dict[str, Tensor]) -> list[str]:
    """Tensors that are missing, not expected, of another shape, or incomplete; chunks never overlap."""
    return sorted(
        name
        for name in stored.keys() | own.keys()
        if name not in stored
        or name not in own
        or stored[name].size != own[name].shape
        or stored[name].properties.dtype != own[name].dtype
        or sum(math.prod(chunk.sizes) for chunk in stored[name].chunks) != own[name].numel()
    )


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _remove(path: Path) -> None:
    """Under another name first: what has the name of a checkpoint is complete."""
    if path.exists():
        shutil.rmtree(path.rename(path.with_name(f"{path.name}.outdated.tmp")))


@contextmanager
def _without_group_warning() -> Iterator[None]:
    """Torch warns a single process, which is alone on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
