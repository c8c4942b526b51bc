"""Models on disk: a folder with `config.json` and `model.safetensors`. Nothing in it can run code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from resolvent.files import whole, write_text
from resolvent.model.config import ModelConfig
from resolvent.model.language_model import LanguageModel

FORMAT, VERSION = "resolvent-model", 1
CONFIG = "config.json"


def save(model: LanguageModel, folder: str | Path) -> Path:
    """Write weights under a name of their own, then the config that names them, then remove weights no one names.

    So the folder holds the model before or the new one, whole, whenever this is cut short.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().contiguous().cpu() for name, t in model.state_dict().items()}
    unnamed = folder / ".weights"
    with whole(unnamed) as beside:
        save_file(weights, beside, metadata={"format": FORMAT})  # a second entry would make the order vary
    digest = _digest(unnamed)
    path = unnamed.replace(folder / f"model-{digest[:8]}.safetensors")
    content = {"format": FORMAT, "version": VERSION, "weights": path.name, "sha256": digest}
    write_text(folder / CONFIG, json.dumps(content | {"model": model.config.to_dict()}, indent=2) + "\n")
    for old in folder.glob("model-*.safetensors"):
        if old != path:
            old.unlink(missing_ok=True)
    return folder


def load(folder: str | Path, *, device: torch.device | str = "cpu", backend: str = "auto") -> LanguageModel:
    """The model in a folder. All is checked before anything is used; what is wrong is said."""
    folder = Path(folder)
    content = _read_config(folder)
    config = ModelConfig.from_dict(content["model"], complete=True)
    path = folder / content["weights"]
    if not path.is_file():
        raise FileNotFoundError(f"expected the weights in {path}, which is not there.")
    try:
        weights = load_file(path, device="cpu")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged, or no safetensors file ({error}): expected what `save` wrote.") from error
    _compare(LanguageModel.shape_only(config).state_dict(), weights, path)
    if _digest(path) != content["sha256"]:
        raise ValueError(f"{path} is not the file that {CONFIG} was written with: damaged, or of another model.")
    with torch.device("meta"):
        model = LanguageModel(config, backend=backend)
    model.load_state_dict(weights, assign=True)
    return model.to(device)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"expected a model's folder, with {CONFIG} in it, got {folder}.")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: expected JSON ({error}).") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} describes no model of this library: expected format '{FORMAT}'.")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {content.get('version')!r}, and this release reads {VERSION}: "
            "use the release that wrote it, or a newer one."
        )
    wrong = [
        key
        for key, kind in (("weights", str), ("sha256", str), ("model", dict))
        if not isinstance(content.get(key), kind)
    ]
    if wrong or Path(content["weights"]).name != content["weights"]:
        raise ValueError(f"{path} is incomplete or damaged: expected {', '.join(wrong or ['weights'])}.")
    return content


def _compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], path: Path) -> None:
    """Every key, shape and dtype, before anything is loaded."""
    shapes = [
        f"{name} is {tuple(found[name].shape)}, expected {tuple(t.shape)}"
        for name, t in expected.items()
        if name in found and found[name].shape != t.shape
    ]
    faults = {
        "missing": [name for name in expected if name not in found],
        "extra": [name for name in found if name not in expected],
        "mis-shaped": shapes,
        "not floating": [name for name, t in found.items() if not t.is_floating_point()],
    }
    said = "; ".join(f"{what}: {_some(names)}" for what, names in faults.items() if names)
    if said:
        raise ValueError(f"{path} does not fit the model that {CONFIG} describes. {said}. Nothing was loaded.")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
