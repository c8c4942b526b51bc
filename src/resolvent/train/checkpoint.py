"""A run in the middle, on disk: model, optimizer, and where it stands. One safetensors file, replaced whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file

from resolvent.files import whole
from resolvent.model import LanguageModel

FORMAT, VERSION = "resolvent-checkpoint", "1"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """A kill at any moment leaves the one before or this one."""
    tensors = {f"model/{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"optimizer/{moment}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    with whole(path) as beside:
        save_file(tensors, beside, metadata={"format": FORMAT, "version": VERSION, "state": json.dumps(state)})


def load(path: Path, model: LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model and optimizer back where they were; the state that was saved with them."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to begin the run again.") from error
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(f"{path} is no checkpoint of this release: expected {FORMAT} {VERSION}, got {about}.")
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
    state: dict[str, Any] = json.loads(about["state"])
    return state
