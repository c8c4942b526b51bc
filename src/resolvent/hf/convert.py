"""Between `LanguageModel` and transformers: the same weights under the same names, to the last bit."""

from __future__ import annotations

from pathlib import Path

import torch

from resolvent.errors import shortened
from resolvent.fields import as_mapping
from resolvent.hf.config import ResolventConfig
from resolvent.hf.model import ResolventForCausalLM
from resolvent.model import LanguageModel
from resolvent.untrusted import read as read_json


def from_language_model(model: LanguageModel, **settings: object) -> ResolventForCausalLM:
    """A copy for transformers; further settings of its config by name, such as `dropout` or `eos_token_id`.

    >>> from resolvent.model import preset
    >>> from_language_model(LanguageModel(preset("tiny"))).num_parameters()
    960288
    """
    with torch.device("meta"):
        copy = ResolventForCausalLM(ResolventConfig.from_model_config(model.config, **settings))
    copy.model.stack.load_state_dict({name: t.clone() for name, t in model.state_dict().items()}, assign=True)
    copy.tie_weights()
    copy.config.dtype = copy.dtype
    return copy.train(model.training)


def to_language_model(model: ResolventForCausalLM) -> LanguageModel:
    """A copy as a `LanguageModel`, whose head always has the weights of the embedding."""
    stack = model.model.stack
    if model.lm_head.weight is not stack.embedding.weight:
        raise ValueError(
            "the head of a LanguageModel has the weights of the embedding: expected tie_word_embeddings=True."
        )
    with torch.device("meta"):
        copy = LanguageModel(stack.config)
    copy.load_state_dict({name: t.clone() for name, t in stack.state_dict().items()}, assign=True)
    return copy.train(model.training)


def convert(source: Path, target: Path, **settings: object) -> Path:
    """Convert the folder of a `LanguageModel` to one of transformers, or the other way round.

    What the source is, its `config.json` says; `settings` are for the config of transformers. Returns the target.
    """
    check_target(target)
    if is_of_transformers(source):
        return to_language_model(load(source)).save(target)
    from_language_model(LanguageModel.load(source), **settings).save_pretrained(target)
    return target


def is_of_transformers(folder: Path) -> bool:
    """Whether a folder was saved by transformers."""
    path = folder / "config.json"
    return path.is_file() and "model_type" in as_mapping(read_json(path), "config.json")


def load(folder: Path) -> ResolventForCausalLM:
    """The model in a folder of transformers, one of ours, with weights as they are."""
    kind = as_mapping(read_json(folder / "config.json"), "config.json").get("model_type")
    if kind != ResolventConfig.model_type:
        raise ValueError(f"expected a ResolventForCausalLM in {folder}, got a model of type {shortened(kind)}.")
    return ResolventForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)


def check_target(target: Path) -> None:
    """Nothing is written over."""
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise FileExistsError(f"expected a new or an empty folder to convert to, got {target}.")
