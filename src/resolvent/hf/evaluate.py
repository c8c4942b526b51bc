"""Models on tasks of lm-eval that lie in local files: nothing is downloaded, and no file is executed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from resolvent.errors import shortened
from resolvent.fields import as_mapping, as_text
from resolvent.hf.convert import from_language_model
from resolvent.model import LanguageModel

_LOCAL = ("json", "csv", "parquet", "text")  # kinds of files, as datasets names them
_LONGEST = 1 << 24  # tokens: a model has no limit of its own, and what lm-eval takes for one would cut texts
Results = dict[str, dict[str, float]]


def evaluate(
    model: PreTrainedModel | LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Path],
    *,
    limit: int | None = None,
    batch_size: int = 8,
) -> Results:
    """Run tasks of lm-eval, each in a YAML file whose data lie beside it.

    Args:
        model: ours, or any of transformers.
        tokenizer: its tokenizer, of transformers.
        tasks: YAML files of tasks; `dataset_kwargs.data_files` are files beside each.
        limit: documents of each task [default: all].
        batch_size: texts at a time.

    Returns:
        For each task, by name, its metrics.
    """
    harness = _lm_eval()
    settings = [read_task(path) for path in tasks]
    wrapped = harness_model(model, tokenizer, batch_size=batch_size)
    manager = import_module("lm_eval.tasks").TaskManager(include_defaults=False)
    output = harness.simple_evaluate(
        wrapped, tasks=settings, task_manager=manager, limit=limit, bootstrap_iters=0, log_samples=False
    )
    return {name: _metrics(values) for name, values in output["results"].items()}


def harness_model(
    model: PreTrainedModel | LanguageModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 8
) -> object:
    """A model as lm-eval takes it, for its own `simple_evaluate`: an `HFLM` that cuts no text."""
    _lm_eval()
    inner = from_language_model(model) if isinstance(model, LanguageModel) else model
    kind = import_module("lm_eval.models.huggingface").HFLM
    wrapped: object = kind(
        pretrained=inner.eval(),
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_length=_LONGEST,
        backend="causal",
        device=str(inner.device),
    )
    return wrapped


def read_task(path: Path) -> dict[str, object]:
    """The settings of a task in a YAML file of plain values, with the paths of its data, which lie beside it."""
    yaml = import_module("yaml")
    try:
        settings = dict(as_mapping(yaml.safe_load(path.read_text(encoding="utf-8")), "a task"))
        kind, files = settings.get("dataset_path"), as_mapping(settings.get("dataset_kwargs"), "dataset_kwargs")
        if kind not in _LOCAL:
            raise ValueError(f"expected dataset_path to be {' or '.join(_LOCAL)}, got {shortened(kind)}.")
        as_text(settings.get("task"), "task")
        given = as_mapping(files.get("data_files"), "data_files")
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not a task of lm-eval in local files, without functions: {error}") from None
    data = {split: str(_beside(path, as_text(name, "a file"))) for split, name in given.items()}
    return settings | {"dataset_kwargs": {**files, "data_files": data}}


def _beside(path: Path, name: str) -> Path:
    file = path.parent / name
    if not file.is_file():
        raise FileNotFoundError(f"expected the data of {path} in {file}, which does not exist.")
    return file.resolve()


def _metrics(values: Mapping[str, object]) -> dict[str, float]:
    """Numbers alone, by the names of metrics: lm-eval writes "acc,none"."""
    named = {name.removesuffix(",none"): value for name, value in values.items() if "," in name}
    return {name: float(value) for name, value in named.items() if isinstance(value, int | float)}


def _lm_eval() -> ModuleType:
    try:
        harness = import_module("lm_eval")
    except ImportError:
        raise ImportError("tasks are run by lm-eval, which is missing: pip install lm-eval.") from None
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return harness
