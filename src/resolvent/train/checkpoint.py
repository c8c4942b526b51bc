"""Checkpoints: model, optimizer and the state of a run, on disk.

One safetensors file, replaced atomically; or a folder that every process writes to (see `shards`) if weights are
sharded. A run resumes from either, in either mode.

A file holds a digest of itself, so that a single damaged byte is found.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from resolvent.errors import shortened
from resolvent.files import atomic_write
from resolvent.model import LanguageModel
from resolvent.tensor_files import UNSEALED, TensorFile, differences, read_header, seal, seal_is_broken
from resolvent.train import shards
from resolvent.train.processes import Processes
from resolvent.train.state import CHECKPOINT, SHARDS, SavedRun
from resolvent.untrusted import parse

FILE, FOLDER = CHECKPOINT, SHARDS
FORMAT, VERSION = "resolvent-checkpoint", 2
_ADVICE = "delete it to begin the run again."


def write(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, run: SavedRun, processes: Processes
) -> None:
    """Into the folder of a run. A checkpoint of the other kind is older, and is removed."""
    if run.config.train.sharded:
        shards.save(folder / FOLDER, model, optimizer, run, processes)
        if processes.first:
            (folder / FILE).unlink(missing_ok=True)
    elif processes.first:
        save(folder / FILE, model, optimizer, run)
        _remove_folder(folder / FOLDER)


def read(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, processes: Processes,
    check: Callable[[SavedRun], None] = lambda _: None,
) -> SavedRun | None:  # fmt: skip
    """Restore model and optimizer from the latest checkpoint; what was saved with them, or None if there is none.

    `check` sees it first, and may raise an error.
    """
    sharded, single = shards.latest(folder / FOLDER), _read(folder / FILE)
    steps = [0 if each is None else each.run.state.step for each in (single, sharded)]
    processes.check_same_step(max(steps))
    if sharded is not None and steps[1] > steps[0]:
        check(sharded.run)
        shards.load(sharded, model, optimizer, processes)
        return sharded.run
    if single is None:
        return None
    check(single.run)
    if processes.sharded:
        shards.load_tensors(folder, single.run, model, optimizer, processes)  # full tensors in one file
    else:
        _load(single, model, optimizer)
    return single.run


@dataclass(frozen=True)
class LatestCheckpoint:
    """What a run would resume from: the file that says so, and what it says of the run."""

    path: Path
    run: SavedRun


def latest(folder: Path) -> LatestCheckpoint | None:
    """The latest checkpoint in the folder of a run, without its tensors; None if there is none."""
    sharded, single = shards.latest(folder / FOLDER), _read(folder / FILE)
    if sharded is not None and (single is None or sharded.run.state.step > single.run.state.step):
        return LatestCheckpoint(sharded.folder / shards.STATE, sharded.run)
    return None if single is None else LatestCheckpoint(folder / FILE, single.run)


def exists(folder: Path) -> bool:
    """Whether a run would resume from something in this folder."""
    return (folder / FILE).exists() or (folder / FOLDER / shards.LATEST).exists()


def of_file(path: Path) -> LatestCheckpoint:
    """What a checkpoint in one file says of its run."""
    checkpoint = _read(path)
    if checkpoint is None:
        raise FileNotFoundError(f"expected a checkpoint, and {path} does not exist.")
    return LatestCheckpoint(path, checkpoint.run)


def remove(folder: Path) -> None:
    """A finished run needs none."""
    (folder / FILE).unlink(missing_ok=True)
    _remove_leftovers(folder)
    _remove_folder(folder / FOLDER)


def _remove_folder(folder: Path) -> None:
    (folder / shards.LATEST).unlink(missing_ok=True)  # first: nothing points to an incomplete one
    shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """What safetensors was writing when a process was killed. No other process writes to the folder of a run."""
    for leftover in folder.glob(".tmp??????"):
        leftover.unlink(missing_ok=True)


def save(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, run: SavedRun) -> None:
    """A kill at any moment leaves the previous file or this one."""
    tensors = {f"model/{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{moment}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    header = {"format": FORMAT, "version": str(VERSION), "state": json.dumps(run.to_dict()), "sha256": UNSEALED}
    _remove_leftovers(path.parent)
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=header)
        seal(temporary)


@dataclass(frozen=True)
class _Checkpoint:
    file: TensorFile
    run: SavedRun


def _read(path: Path) -> _Checkpoint | None:
    """None if there is no such file; an error if it is not what was written."""
    if not path.exists():
        return None
    file = read_header(path, _ADVICE)
    kind, version = file.metadata.get("format"), file.metadata.get("version")
    if kind != FORMAT or version != str(VERSION):
        raise ValueError(
            f"{path} is not a checkpoint of this release: expected {FORMAT} {VERSION}, got {shortened(kind)} "
            f"{shortened(version)}. Use the release that wrote it, or {_ADVICE}"
        )
    if seal_is_broken(path):
        raise ValueError(f"{path} is damaged: its sha256 is not the one it was written with: {_ADVICE}")
    try:
        if "state" not in file.metadata:
            raise ValueError("expected the state of the run beside its tensors, got none.")
        return _Checkpoint(file, SavedRun.from_dict(parse(file.metadata["state"])))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error} To do without it, {_ADVICE}") from None


def load(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    """Restore model and optimizer from a file."""
    checkpoint = _read(path)
    if checkpoint is None:
        raise FileNotFoundError(f"expected a checkpoint, and {path} does not exist.")
    _load(checkpoint, model, optimizer)


def _load(checkpoint: _Checkpoint, model: LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    path = checkpoint.file.path
    expected = shards.expected_tensors(model, checkpoint.run.state)
    if wrong := differences(expected, checkpoint.file.tensors):
        raise ValueError(f"{path} is incomplete, or of another model. {wrong}. Nothing was loaded: {_ADVICE}")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except safetensors.SafetensorError as error:  # tensors that overlap
        raise ValueError(f"{path} is damaged ({error}): {_ADVICE}") from None
    shards.check_steps(tensors, checkpoint.run.state, f"{path} is damaged", _ADVICE)
    model.load_state_dict({name: tensors[f"model/{name}"] for name in model.state_dict()})
    for name, parameter in model.named_parameters():
        for moment in shards.MOMENTS:
            value = tensors.get(f"optimizer/{moment}/{name}")
            if value is not None:
                optimizer.state[parameter][moment] = value if moment == "step" else value.to(parameter.device)
