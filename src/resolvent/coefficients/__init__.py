"""Torch modules that learn the numbers in A and B: one file a rule, which names its module."""

from importlib import import_module

from resolvent.coefficients.layer import CoefficientModule, Layer
from resolvent.coefficients.positions import Positions, positions_of
from resolvent.coefficients.weights import Weights


def make_coefficients(layer: Layer) -> CoefficientModule:
    """The module that the layer's rule names."""
    file, _, name = layer.rule.module.partition(".")
    module: CoefficientModule = getattr(import_module(f"resolvent.coefficients.{file}"), name)(layer)
    return module


__all__ = ["CoefficientModule", "Layer", "Positions", "Weights", "make_coefficients", "positions_of"]
