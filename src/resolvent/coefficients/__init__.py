"""Torch modules that learn the numbers in A and B: one for each rule."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass

from resolvent.coefficients.distance import DistanceCoefficients
from resolvent.coefficients.grouped import GroupedCoefficients
from resolvent.coefficients.layer import CoefficientModule, Layer
from resolvent.coefficients.linear import LinearCoefficients
from resolvent.coefficients.low_rank import LowRankCoefficients
from resolvent.coefficients.mamba import Mamba1Coefficients, Mamba2Coefficients
from resolvent.coefficients.positions import Positions, positions_of
from resolvent.coefficients.softmax import SoftmaxCoefficients
from resolvent.coefficients.weights import Weights
from resolvent.rules import RULES, Rule
from resolvent.rules.distance import Distance
from resolvent.rules.linear import Linear
from resolvent.rules.low_rank import LowRank
from resolvent.rules.mamba import Mamba1, Mamba2
from resolvent.rules.softmax import Joint, Softmax, Tied

_MODULES: dict[type[Rule], type[CoefficientModule]] = {
    Softmax: SoftmaxCoefficients,
    Joint: SoftmaxCoefficients,
    Tied: SoftmaxCoefficients,
    Distance: DistanceCoefficients,
    LowRank: LowRankCoefficients,
    Mamba1: Mamba1Coefficients,
    Mamba2: Mamba2Coefficients,
    Linear: LinearCoefficients,
}
_OURS = frozenset(_MODULES)


def register_rule(rule: type[Rule], module: type[CoefficientModule]) -> type[Rule]:
    """Make a rule of your own known: by its name in spellings, configs and saved models.

    Whoever loads such a model registers the rule first. A second one of the same name replaces it.

    Args:
        rule: a frozen dataclass derived from `resolvent.rules.Rule` or `GatedRule`, with a `name` and a `summary`. Its
            fields are its options: booleans, integers or strings, each with a default.
        module: learns its numbers, and is made of a `Layer`: most derive from `GroupedCoefficients`.

    Returns:
        The rule.

    >>> register_rule(Softmax, SoftmaxCoefficients)
    Traceback (most recent call last):
    ValueError: the rule 'softmax' is one of resolvent's: expected another name.
    """
    if not (isinstance(rule, type) and issubclass(rule, Rule) and is_dataclass(rule)):
        raise TypeError(f"expected a dataclass derived from resolvent.rules.Rule, got {rule!r}.")
    if not (isinstance(module, type) and issubclass(module, CoefficientModule)):
        raise TypeError(f"expected a class derived from resolvent.coefficients.CoefficientModule, got {module!r}.")
    missing = [name for name in ("name", "summary") if not isinstance(getattr(rule, name, None), str)]
    missing += [field.name for field in fields(rule) if field.default is MISSING]
    if missing:
        raise TypeError(f"expected {rule.__name__} to give {' and '.join(missing)} a value of its own.")
    if not rule.name or set(rule.name) & set(":,= "):
        raise ValueError(f"expected a name without ':', ',', '=' or spaces, got {rule.name!r}.")
    if RULES.get(rule.name) in _OURS:
        raise ValueError(f"the rule {rule.name!r} is one of resolvent's: expected another name.")
    RULES[rule.name], _MODULES[rule] = rule, module
    return rule


def make_coefficients(layer: Layer) -> CoefficientModule:
    """The module that learns a layer's rule."""
    module = _MODULES.get(type(layer.rule))
    if module is None:
        raise TypeError(
            f"no module learns the rule {type(layer.rule).__name__}: call resolvent.register_rule(rule, module) first."
        )
    return module(layer)


__all__ = [
    "CoefficientModule",
    "GroupedCoefficients",
    "Layer",
    "Positions",
    "Weights",
    "make_coefficients",
    "positions_of",
    "register_rule",
]
