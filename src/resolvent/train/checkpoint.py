"""A run in the middle, on disk: model, optimizer, and where it stands.

One safetensors file, replaced whole; or a folder that every process writes to (see `shards`) if weights are sharded. A
run goes on from either, whichever way it is to go on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from resolvent.files import whole
from resolvent.model import LanguageModel
from resolvent.train import shards
from resolvent.train.processes import Processes

FILE, FOLDER = "checkpoint.safetensors", "checkpoints"
FORMAT, VERSION = "resolvent-checkpoint", "1"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def write(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, about: dict[str, Any], processes: Processes,
    parallel: str,
) -> None:  # fmt: skip
    """Into the folder of a run. What is there of the other kind is older, and goes."""
    if parallel == "shard":
        shards.save(folder / FOLDER, model, optimizer, about, processes)
        if processes.first:
            (folder / FILE).unlink(missing_ok=True)
    elif processes.first:
        save(folder / FILE, model, optimizer, about)
        _remove_folder(folder / FOLDER)


def read(
    folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, processes: Processes,
    accept: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any] | None:  # fmt: skip
    """Put model and optimizer where they were last; what was said about them, or None if there is no checkpoint.

    What was said goes to `accept` first, which may refuse.
    """
    parts, path = shards.latest(folder / FOLDER), folder / FILE
    about = _about(path) if path.exists() else None
    steps = [0 if found is None else found["state"]["step"] for found in (about, None if parts is None else parts[1])]
    processes.agree(max(steps))
    if parts is not None and steps[1] > steps[0]:
        accept(parts[1])
        shards.read(parts[0], model, optimizer, processes)
        return parts[1]
    if about is not None:
        accept(about)
    if about is not None and processes.sharded:
        shards.read(folder, model, optimizer, processes)  # whole tensors in one file are parts, too
    elif about is not None:
        load(path, model, optimizer)
    return about


def remove(folder: Path) -> None:
    """A run that is done needs none."""
    (folder / FILE).unlink(missing_ok=True)
    _remove_folder(folder / FOLDER)


def _remove_folder(folder: Path) -> None:
    (folder / shards.LATEST).unlink(missing_ok=True)  # first: nothing points to what is there in part
    shutil.rmtree(folder, ignore_errors=True)


def save(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """A kill at any moment leaves the one before or this one."""
    tensors = {f"model/{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{moment}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    with whole(path) as beside:
        save_file(tensors, beside, metadata={"format": FORMAT, "version": VERSION, "state": json.dumps(state)})


def _about(path: Path) -> dict[str, Any]:
    """What was saved with the tensors."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to begin the run again.") from error
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ValueError(f"{path} is no checkpoint of this release: expected {FORMAT} {VERSION}, got {found}.")
    about: dict[str, Any] = json.loads(found["state"])
    return about


def load(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    """Put model and optimizer back where they were."""
    tensors = load_file(path)
    weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    own = model.state_dict()
    wrong = [name for name in own.keys() | weights.keys()
             if name not in own or name not in weights or own[name].shape != weights[name].shape]  # fmt: skip
    if wrong:
        raise ValueError(f"{path} is of another model: {', '.join(sorted(wrong)[:3])} do not fit.")
    model.load_state_dict(weights)
    for name, parameter in model.named_parameters():
        for moment in _MOMENTS:
            value = tensors.get(f"optimizer/{moment}/{name}")
            if value is not None:
                optimizer.state[parameter][moment] = value if moment == "step" else value.to(parameter.device)
