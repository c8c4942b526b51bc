"""Folders of models: complete when they are loaded, and found by Auto classes where this package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NoReturn, Self

from transformers import PreTrainedModel

from resolvent.files import write_text
from resolvent.tensor_files import some

_MODULE = "modeling_resolvent"
_STUB = '''"""Loads the package that this model is of, resolvent."""

from resolvent.hf import {names}

__all__ = [{quoted}]
'''


class FolderModel(PreTrainedModel):
    """What our models share: how they are saved and loaded.

    auto_classes  names of Auto classes and what each loads from a folder of this model
    required      in the names of weights that must not be missing
    """

    auto_classes: ClassVar[dict[str, str]]
    required: ClassVar[str]
    _is_stateful = True  # a pattern drops what it will not read, so that rejected tokens cannot be taken back

    @classmethod
    def from_pretrained(cls, *args: object, output_loading_info: bool = False, **kwargs: object) -> Self:
        """As of every model of transformers; but weights that are missing raise an error."""
        model, information = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if missing := sorted(name for name in information["missing_keys"] if cls.required in name):
            raise ValueError(f"expected all weights of the model in {args[0]}, and {some(missing)} are missing.")
        return (model, information) if output_loading_info else model  # type: ignore[return-value]

    def save_pretrained(self, save_directory: str | Path, **kwargs: object) -> None:
        """Beside weights and config, a line of Python by which Auto classes find the package where it is installed."""
        self.config.auto_map = {auto: f"{_MODULE}.{name}" for auto, name in self.auto_classes.items()}
        super().save_pretrained(save_directory, **kwargs)
        names = sorted(self.auto_classes.values())
        text = _STUB.format(names=", ".join(names), quoted=", ".join(f'"{name}"' for name in names))
        write_text(Path(save_directory) / f"{_MODULE}.py", text)

    def init_continuous_batching(self, *_: object, **__: object) -> NoReturn:
        """What `generate_batch` starts with: pages of keys and values, which mixers do not have."""
        raise NotImplementedError(
            "continuous batching keeps pages of keys and values, which mixers do not have: expected generate(), which "
            "takes batches padded on the left."
        )

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: transformers would copy this file beside the weights, which the line that is saved replaces."""
