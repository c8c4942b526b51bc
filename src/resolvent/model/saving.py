"""Models on disk: a folder with `config.json` and `model.safetensors`. Nothing in it can run code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from resolvent.errors import SettingError, shortened
from resolvent.fields import as_integer, as_mapping, as_text, check_format, check_names
from resolvent.files import atomic_write, write_text
from resolvent.model.config import ModelConfig, check_model_settings
from resolvent.patterns import Explicit
from resolvent.patterns.table import Table, check_tables, tables_within_limits
from resolvent.rules import UnknownRuleError
from resolvent.tensor_files import (
    StoredTensor,
    TensorFile,
    TensorLike,
    differences,
    dtype_name,
    read_header,
    sha256_of,
    some,
)
from resolvent.untrusted import MOST_BYTES
from resolvent.untrusted import read as read_json

FORMAT, VERSION = "resolvent-model", 2
CONFIG = "config.json"

_DTYPES = ("float32", "float64", "bfloat16", "float16")
_BLOCK = re.compile(r"blocks\.(\d+)\.")
_ADVICE = "expected what `save` wrote."


def write(folder: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Write weights under a name of their own, then the config that names them, then remove weights no one names.

    So the folder holds the previous model or the new one, complete, whenever this is interrupted.
    """
    settings = config.to_dict()  # or an error, before anything is written
    _check_tables(config)
    dtype = _one_dtype(state, "these weights")
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().contiguous().cpu() for name, t in state.items()}
    unnamed = folder / ".weights"
    with atomic_write(unnamed) as beside:
        save_file(weights, beside, metadata={"format": FORMAT})  # a second entry would make the order vary
    digest = sha256_of(unnamed)
    path = unnamed.replace(folder / f"model-{digest[:8]}.safetensors")
    content = {"format": FORMAT, "version": VERSION, "weights": path.name, "sha256": digest, "dtype": dtype}
    write_text(folder / CONFIG, json.dumps(content | {"model": settings}, indent=2) + "\n")
    for previous in folder.glob("model-*.safetensors"):
        if previous != path:
            previous.unlink(missing_ok=True)


@dataclass(frozen=True)
class SavedModel:
    """What `config.json` in a folder says, and what the header of its weights says: not more than there is."""

    sha256: str
    config: ModelConfig
    file: TensorFile

    def read_weights(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights, of the names and shapes that are expected. Everything is checked before anything is used."""
        path, stored = self.file.path, self.file.tensors
        dtype = next(iter(stored.values())).dtype
        if wrong := differences({name: StoredTensor(dtype, tuple(t.shape)) for name, t in expected.items()}, stored):
            raise ValueError(f"{path} does not fit the model that {CONFIG} describes. {wrong}. Nothing was loaded.")
        if sha256_of(path) != self.sha256:
            raise ValueError(f"{path} is not the file that {CONFIG} was written with: damaged, or of another model.")
        try:
            return load_file(path, device="cpu")
        except safetensors.SafetensorError as error:  # tensors that overlap
            raise ValueError(f"{path} is damaged ({error}): {_ADVICE}") from None


def read(folder: Path) -> SavedModel:
    """What a folder says of its model; an error says what is wrong."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"expected a model's folder, with {CONFIG} in it, got {path.parent}.")
    try:
        content = as_mapping(read_json(path), CONFIG)
        check_format(content, FORMAT, VERSION, "a model")
        check_names(content, ("weights", "sha256", "model", "dtype"), CONFIG, optional=())
        weights, digest = (as_text(content[name], name) for name in ("weights", "sha256"))
        if Path(weights).name != weights:
            raise ValueError(f"expected weights to be the name of a file, got {shortened(weights)}.")
        settings = as_mapping(content["model"], "model")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not (folder / weights).is_file():
        raise FileNotFoundError(f"expected the weights in {folder / weights}, which does not exist.")
    file = read_header(folder / weights, _ADVICE)
    dtype = _one_dtype(file.tensors, str(file.path))
    if content["dtype"] != dtype:
        raise ValueError(f"{file.path} has weights of {dtype}, expected {shortened(content['dtype'])}, as in {CONFIG}.")
    try:
        check_model_settings(settings, complete=True)
        _compare_sizes(settings, file)
        with tables_within_limits():
            config = ModelConfig.from_dict(settings, complete=True)
    except UnknownRuleError as error:
        raise SettingError(f"{folder} has a rule that is not registered: import its module first; {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged, or of another model: {error}") from None
    return SavedModel(digest, config, file)


def _check_tables(config: ModelConfig) -> None:
    patterns = {pattern for layer in range(config.layers) for pattern in config.patterns_of(layer)}
    stages = [stage for pattern in patterns for stage in pattern.stages]
    check_tables(stage.rows for stage in stages if isinstance(stage, Explicit) and isinstance(stage.rows, Table))
    characters = sum(len(stage.spelling) for stage in stages)
    if characters > MOST_BYTES // 2:
        raise ValueError(f"expected patterns of at most {MOST_BYTES // 2:,} characters in all, got {characters:,}.")


def _one_dtype(tensors: Mapping[str, TensorLike], what: str) -> str:
    names: dict[str, list[str]] = {}
    for name, t in tensors.items():
        names.setdefault(dtype_name(t), []).append(name)
    if len(names) != 1 or not names.keys() <= set(_DTYPES):
        present = "; ".join(f"{dtype}: {some(those)}" for dtype, those in names.items()) or "no tensors"
        raise ValueError(
            f"{what} cannot be a model's weights: expected all of one dtype, {' or '.join(_DTYPES)}, got {present}. "
            "Convert them with model.to(dtype) before saving."
        )
    return next(iter(names))


def _compare_sizes(settings: Mapping[str, object], file: TensorFile) -> None:
    """What the config claims, against the weights that exist, before patterns are parsed and layers are built."""
    layers = as_integer(settings.get("layers"), "layers")
    stored = len({match[1] for name in file.tensors if (match := _BLOCK.match(name))})
    if layers != stored:
        raise ValueError(f"expected {layers:,} layers, as its settings say, got weights of {stored:,} in {file.path}.")
    for name in ("pattern", "rule"):
        given = settings.get(name)
        if isinstance(given, list) and len(given) != layers:
            raise ValueError(f"expected one {name} for all layers, or {layers:,}, one for each; got {len(given):,}.")
    embedding = file.tensors.get("embedding.weight")
    if embedding is None or len(embedding.shape) != 2 or settings.get("dim") != embedding.shape[1]:
        raise ValueError(
            f"expected embeddings of dim {shortened(settings.get('dim'))}, got {embedding} in {file.path}."
        )
