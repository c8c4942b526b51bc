"""Models of version 1 in the words of this release: settings, and names of tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping

from resolvent.rules import ALIASES, RENAMED

_TENSORS = {".mlp_in.": ".start_of_mlp.", ".mlp_out.": ".end_of_mlp."}


def config(values: Mapping[str, object]) -> dict[str, object]:
    """The settings of a model: `coefficients` are a rule now."""
    model = dict(values)
    if "coefficients" in model:
        model["rule"] = _rule(model.pop("coefficients"))
    return model


def tensor_name(name: str) -> str:
    """What a tensor of this release is called in files of version 1."""
    for new, previous in _TENSORS.items():
        name = name.replace(new, previous)
    return name


def is_unused(name: str, expected: Container[str]) -> bool:
    """Whether a tensor had no effect, and is gone: scores of B, beside an A of low rank, where B reads one token."""
    layer, _, rest = name.rpartition(".scores.")
    return rest in ("weight", "bias") and f"{layer}.features.weight" in expected and name not in expected


def _rule(spec: object) -> object:
    if isinstance(spec, list | tuple):
        return [_rule(each) for each in spec]
    if not isinstance(spec, str):
        return spec
    name, _, options = spec.partition(":")
    if name == "tied":  # its δ was free then
        options = f"{options},blend=free" if options else "blend=free"
    return {**RENAMED, **ALIASES}.get(name, name) + (options and f":{options}")
