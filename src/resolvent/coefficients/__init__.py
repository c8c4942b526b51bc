"""How much each token takes from what it reads: modules that learn the numbers in A and B."""

from resolvent.analysis.coefficients import Coefficients, Distance, Linear, LowRank, Mamba
from resolvent.coefficients.distance import DistanceCoefficients
from resolvent.coefficients.layer import CoefficientModule, Layer
from resolvent.coefficients.linear import LinearCoefficients
from resolvent.coefficients.low_rank import LowRankCoefficients
from resolvent.coefficients.mamba import MambaCoefficients
from resolvent.coefficients.place import Place, place
from resolvent.coefficients.softmax import SoftmaxCoefficients
from resolvent.coefficients.weights import Weights

MODULES: dict[type[Coefficients], type[CoefficientModule]] = {
    Distance: DistanceCoefficients,
    LowRank: LowRankCoefficients,
    Mamba: MambaCoefficients,
    Linear: LinearCoefficients,
}


def make_coefficients(layer: Layer) -> CoefficientModule:
    """The module for the layer's rule."""
    return MODULES.get(type(layer.rule), SoftmaxCoefficients)(layer)


__all__ = ["CoefficientModule", "Layer", "Place", "Weights", "make_coefficients", "place"]
